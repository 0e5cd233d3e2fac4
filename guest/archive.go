// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Limits of an archive.
const (
	maxUnpackedBytes = 8 << 30
	maxEntries       = 200_000
	maxPathBytes     = 1024
)

// zipMagic begins a zip file.
const zipMagic = "PK\x03\x04"

// Extract unpacks a tar.gz or zip file into an existing directory. It never writes outside of the directory. It
// returns an error for absolute names, names with "..", links to targets outside of the directory, and
// entries that are not files, directories or links.
func Extract(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open archive: %w", err)
	}

	defer func() { _ = f.Close() }()

	magic := make([]byte, len(zipMagic))
	if n, _ := f.ReadAt(magic, 0); string(magic[:n]) == zipMagic {
		return extractZip(f, dir, maxUnpackedBytes)
	}

	return extractTarGzip(f, dir, maxUnpackedBytes)
}

// extractZip unpacks a zip file, which the runner for Windows is. It returns an error for the names that Extract
// rejects, and for entries that are not files or directories. A backslash separates folders like a slash, because
// Windows PowerShell writes backslashes.
func extractZip(f *os.File, dir string, limit int64) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}

	archive, err := zip.NewReader(f, info.Size())
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}

	if len(archive.File) > maxEntries {
		return fmt.Errorf("read archive: more than %d entries", maxEntries)
	}

	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}

	defer func() { _ = root.Close() }()

	x := &extraction{root: root, remaining: limit}

	for _, entry := range archive.File {
		if err := x.extractZipEntry(entry); err != nil {
			return fmt.Errorf("unpack %q: %w", entry.Name, err)
		}
	}

	return nil
}

// extraction unpacks one archive into the directory root.
type extraction struct {
	root *os.Root
	// remaining is how many more bytes the unpacked files may have.
	remaining int64
}

// extractZipEntry extracts one entry of a zip file.
func (x *extraction) extractZipEntry(entry *zip.File) error {
	// extractEntry is the same for both formats, and takes the header of a tar file.
	header := &tar.Header{
		Name: strings.ReplaceAll(entry.Name, `\`, "/"), Typeflag: tar.TypeReg, Mode: 0o755,
		Size: int64(min(entry.UncompressedSize64, math.MaxInt64)), //nolint:gosec // bounded
	}

	switch mode := entry.Mode(); {
	case mode.IsDir(), strings.HasSuffix(header.Name, "/"):
		header.Typeflag = tar.TypeDir
	case !mode.IsRegular():
		return errors.New("only files and directories are allowed")
	}

	body, err := entry.Open()
	if err != nil {
		return err
	}

	// The size in the header may be wrong.
	err = x.extractEntry(header, io.LimitReader(body, header.Size))

	return errors.Join(err, body.Close())
}

// extractTarGzip unpacks a tar.gz file. It returns an error if its files have more than limit bytes in total.
func extractTarGzip(r io.Reader, dir string, limit int64) error {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("read archive: not a gzip file: %w", err)
	}

	root, err := os.OpenRoot(dir) // rejects every path that leads out of it
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}

	defer func() { _ = root.Close() }()

	x := &extraction{root: root, remaining: limit}
	archive := tar.NewReader(gz)

	for n := 0; ; n++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}

		if n == maxEntries {
			return fmt.Errorf("read archive: more than %d entries", maxEntries)
		}

		if err := x.extractEntry(header, archive); err != nil {
			return fmt.Errorf("unpack %q: %w", header.Name, err)
		}
	}
}

// extractEntry extracts one entry and creates its parent directories. It replaces an existing file or link
// by the name of a link, and rejects devices, pipes and links out of the directory.
func (x *extraction) extractEntry(header *tar.Header, body io.Reader) error {
	name, err := cleanEntryName(header.Name)
	if err != nil {
		return err
	}

	if name == "." {
		return nil
	}

	if parent := path.Dir(name); parent != "." && header.Typeflag != tar.TypeXGlobalHeader {
		if err := x.root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}

	switch header.Typeflag {
	case tar.TypeDir:
		return x.root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return x.extractFile(name, header, body)
	case tar.TypeSymlink:
		if err := validateLinkTarget(path.Dir(name), header.Linkname); err != nil {
			return err
		}

		_ = x.root.Remove(name)

		return x.root.Symlink(header.Linkname, name)
	case tar.TypeLink:
		target, err := cleanEntryName(header.Linkname)
		if err != nil {
			return fmt.Errorf("link target: %w", err)
		}

		_ = x.root.Remove(name)

		return x.root.Link(target, name)
	case tar.TypeXGlobalHeader:
		return nil // it describes the archive and no file
	default:
		return fmt.Errorf("entries of type %q are not allowed: use only files, directories and links", header.Typeflag)
	}
}

func (x *extraction) extractFile(name string, header *tar.Header, body io.Reader) error {
	if header.Size > x.remaining {
		return errors.New("the unpacked files exceed the size limit")
	}

	_ = x.root.Remove(name) // so that no data is written through a link

	perm := os.FileMode(header.Mode) & 0o755 //nolint:gosec // the mask removes set-uid and the write permissions of others

	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm|0o600)
	if err != nil {
		return err
	}

	n, err := io.Copy(f, body) // the tar reader stops at the entry's size
	x.remaining -= n

	return errors.Join(err, f.Close())
}

// cleanEntryName returns the cleaned name. It returns an error if the name leads out of the directory.
func cleanEntryName(name string) (string, error) {
	switch {
	case name == "", strings.ContainsRune(name, 0), len(name) > maxPathBytes:
		return "", errors.New("the name is empty, too long or contains a zero byte")
	case path.IsAbs(name):
		return "", errors.New("the name is absolute")
	}

	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errors.New(`the name contains ".."`)
		}
	}

	return path.Clean(name), nil
}

// validateLinkTarget returns an error if a symbolic link in dir leads out of the root directory.
func validateLinkTarget(dir, target string) error {
	slashed := filepath.ToSlash(target) // Windows resolves backslashes too
	isAbs := path.IsAbs(slashed) || filepath.VolumeName(target) != ""

	if target == "" || isAbs || strings.ContainsRune(target, 0) || len(target) > maxPathBytes {
		return errors.New("the link's target is empty, too long, absolute, or contains a zero byte")
	}

	if resolved := path.Join(dir, slashed); resolved == ".." || strings.HasPrefix(resolved, "../") {
		return errors.New("the link leads out of the directory")
	}

	return nil
}
