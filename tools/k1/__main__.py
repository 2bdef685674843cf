"""`python -m k1` is the `k1` command."""

from k1.cli.main import main

if __name__ == "__main__":
    main()
