// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// Bounds of an archive.
const (
	maxUnpacked = 8 << 30
	maxEntries  = 200_000
	maxPath     = 1024
)

// Extract unpacks a tar.gz file into a directory that exists. Nothing outside of the
// directory is ever written: absolute names, names with "..", links that lead out, and
// anything but files, directories and links are errors.
func Extract(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open archive: %w", err)
	}

	defer func() { _ = f.Close() }()

	return extract(f, dir, maxUnpacked)
}

// extract reads at most limit bytes of files' contents.
func extract(r io.Reader, dir string, limit int64) error {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("read archive: not a gzip file: %w", err)
	}

	root, err := os.OpenRoot(dir) // refuses every path that leaves it
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}

	defer func() { _ = root.Close() }()

	x := &extraction{root: root, left: limit}
	archive := tar.NewReader(gz)

	for n := 0; ; n++ {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}

		if n == maxEntries {
			return fmt.Errorf("read archive: more than %d entries", maxEntries)
		}

		if err := x.entry(head, archive); err != nil {
			return fmt.Errorf("unpack %q: %w", head.Name, err)
		}
	}
}

type extraction struct {
	root *os.Root
	left int64
}

func (x *extraction) entry(head *tar.Header, body io.Reader) error {
	name, err := entryName(head.Name)
	if err != nil {
		return err
	}

	if name == "." {
		return nil
	}

	if parent := path.Dir(name); parent != "." && head.Typeflag != tar.TypeXGlobalHeader {
		if err := x.root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}

	switch head.Typeflag {
	case tar.TypeDir:
		return x.root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return x.file(name, head, body)
	case tar.TypeSymlink:
		if err := insideLink(path.Dir(name), head.Linkname); err != nil {
			return err
		}

		_ = x.root.Remove(name)

		return x.root.Symlink(head.Linkname, name)
	case tar.TypeLink:
		target, err := entryName(head.Linkname)
		if err != nil {
			return fmt.Errorf("link target: %w", err)
		}

		_ = x.root.Remove(name)

		return x.root.Link(target, name)
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return fmt.Errorf("entries of type %q are not allowed: only files, directories and links", head.Typeflag)
	}
}

func (x *extraction) file(name string, head *tar.Header, body io.Reader) error {
	if head.Size > x.left {
		return errors.New("the archive unpacks to more bytes than are allowed")
	}

	_ = x.root.Remove(name) // never write through a link

	perm := os.FileMode(head.Mode) & 0o755 //nolint:gosec // masked: no set-uid, no writing by others

	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm|0o600)
	if err != nil {
		return err
	}

	n, err := io.Copy(f, body) // a tar reader ends at the entry's size
	x.left -= n

	return errors.Join(err, f.Close())
}

// entryName cleans a name; it must stay inside.
func entryName(name string) (string, error) {
	switch {
	case name == "", strings.ContainsRune(name, 0), len(name) > maxPath:
		return "", errors.New("the name is empty, too long or holds a zero byte")
	case path.IsAbs(name):
		return "", errors.New("the name is absolute")
	}

	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errors.New(`the name holds ".."`)
		}
	}

	return path.Clean(name), nil
}

// insideLink refuses symbolic links that lead out of the directory.
func insideLink(dir, target string) error {
	if target == "" || path.IsAbs(target) || strings.ContainsRune(target, 0) || len(target) > maxPath {
		return errors.New("the link's target is empty, too long or absolute")
	}

	if end := path.Join(dir, target); end == ".." || strings.HasPrefix(end, "../") {
		return errors.New("the link leads out of the directory")
	}

	return nil
}
