# An image of the programs of this machine, with the libraries that they need.
# Arguments: the archive to write, its tags (comma between), programs.
set -eu
to=$1 tags=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/usr/local/bin" "$work/root/tmp" "$work/image"
for program in "$@"; do
    ln "$program" "$work/root/usr/local/bin/" 2>/dev/null || cp "$program" "$work/root/usr/local/bin/"
    for library in $(ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true); do
        mkdir -p "$work/root$(dirname "$library")"
        cp -L "$library" "$work/root$library"
    done
done
tar -C "$work/root" --owner=0 --group=0 -cf "$work/image/layer.tar" .
sum=$(sha256sum "$work/image/layer.tar" | cut -c1-64)
printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/local/bin:/usr/sbin:/usr/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$sum" >"$work/image/config.json"
printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$(echo "$tags" | sed 's/,/","/g')" >"$work/image/manifest.json"
tar -C "$work/image" -cf "$to" manifest.json config.json layer.tar
