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

// entry is a file of a tar; a folder, if its name ends in a slash.
type entry struct {
	name string
	// file it is read from; else data.
	file string
	data []byte
	mode int64
}

func byName(a, b entry) int { return cmp.Compare(a.name, b.name) }

// writeTar writes the entries as they come, all of root's and of one time.
func writeTar(out io.Writer, entries []entry, at time.Time) error {
	archive := tar.NewWriter(out)

	for _, e := range entries {
		if err := e.write(archive, at); err != nil {
			return fmt.Errorf("write %s into a tar: %w", e.name, err)
		}
	}

	return archive.Close()
}

func (e entry) write(archive *tar.Writer, at time.Time) error {
	header := &tar.Header{Name: e.name, Mode: e.mode, ModTime: at.UTC(), Typeflag: tar.TypeReg, Format: tar.FormatPAX}

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
	defer file.Close() //nolint:errcheck // it was only read

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

func absolute(path string) (string, error) {
	out, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", path, err)
	}

	return out, nil
}
