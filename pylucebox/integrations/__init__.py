"""Other people's frameworks around `lucebox-serve`. Each module needs an extra of its own."""
