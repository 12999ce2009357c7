#!/bin/sh
# Builds the documents as a book with a search, target/book/html. mdbook reads one folder, and the pages are all
# over the tree: the tracked files are copied to one, each at its place, so that the links between them hold.
set -eu
cd "$(dirname "$0")/.."
command -v mdbook >/dev/null || {
    echo "mdbook is missing: cargo install mdbook --version 0.5.4 --locked --no-default-features --features search" >&2
    exit 2
}
rm -rf target/book
mkdir -p target/book/src
git ls-files -z | xargs -0 cp --parents -t target/book/src
# The links of the summary are relative to docs/; mdbook looks for them from the root.
sed -E -e 's#\]\(([^.])#](docs/\1#' -e 's#\]\(\.\./#](#' docs/SUMMARY.md >target/book/src/SUMMARY.md
cp docs/book.toml target/book/
mdbook build target/book
echo target/book/html/index.html
