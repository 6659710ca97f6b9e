"""The A/B harness behind `lucebox ab`: paired, interleaved comparisons of speed with the text checked.

Nothing here imports the native library; engines and servers run in processes of their own.
"""
