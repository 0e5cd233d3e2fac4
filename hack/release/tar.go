// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file in a tar file. If its name ends with a slash, the entry is a folder.
type entry struct {
	name string
	// file is the path of the file with the content. If it is empty, data is the content.
	file string
	data []byte
	mode int64
}

func byName(a, b entry) int { return cmp.Compare(a.name, b.name) }

// writeTar writes the entries in order. All entries have the owner root and the same modification time.
func writeTar(out io.Writer, entries []entry, modTime time.Time) error {
	archive := tar.NewWriter(out)

	for _, e := range entries {
		if err := e.write(archive, modTime); err != nil {
			return fmt.Errorf("write %s to a tar file: %w", e.name, err)
		}
	}

	return archive.Close()
}

func (e entry) write(archive *tar.Writer, modTime time.Time) error {
	header := &tar.Header{Name: e.name, Mode: e.mode, ModTime: modTime.UTC(), Typeflag: tar.TypeReg, Format: tar.FormatPAX}

	if strings.HasSuffix(e.name, "/") {
		header.Typeflag = tar.TypeDir

		return archive.WriteHeader(header)
	}

	if e.file == "" {
		header.Size = int64(len(e.data))

		if err := archive.WriteHeader(header); err != nil {
			return err
		}

		_, err := archive.Write(e.data)

		return err
	}

	file, err := os.Open(e.file)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // the file is only read

	info, err := file.Stat()
	if err != nil {
		return err
	}

	header.Size = info.Size()

	if err := archive.WriteHeader(header); err != nil {
		return err
	}

	_, err = io.Copy(archive, file)

	return err
}

func absolutePath(path string) (string, error) {
	out, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolve path %s: %w", path, err)
	}

	return out, nil
}
