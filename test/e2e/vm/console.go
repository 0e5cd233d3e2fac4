// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// Line is a line of a machine's console and the moment in which its end was seen.
type Line struct {
	At   time.Time
	Text string
}

// lookEvery is how often a console's file is looked at, and so how exact its times are.
const lookEvery = 10 * time.Millisecond

// escapes are what colours a terminal.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// Console is what a machine writes, line by line.
type Console struct {
	mu    sync.Mutex
	lines []Line
	rest  []byte
}

// Write takes what the machine writes; it never fails.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := time.Now()
	c.rest = append(c.rest, p...)

	for {
		at := bytes.IndexByte(c.rest, '\n')
		if at < 0 {
			return len(p), nil
		}

		text := escapes.ReplaceAll(bytes.TrimRight(c.rest[:at], "\r"), nil)
		c.lines = append(c.lines, Line{At: now, Text: string(text)})
		c.rest = c.rest[at+1:]
	}
}

// First is the first line that matches.
func (c *Console) First(pattern *regexp.Regexp) (Line, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, line := range c.lines {
		if pattern.MatchString(line.Text) {
			return line, true
		}
	}

	return Line{}, false
}

// Follow copies the only file of a folder into the console, as it grows, until ctx ends.
func (c *Console) Follow(ctx context.Context, folder string) error {
	var file *os.File

	for {
		if file == nil {
			var err error
			if file, err = openOnly(folder); err != nil {
				return err
			}
		}

		if file != nil {
			if _, err := io.Copy(c, file); err != nil {
				return errors.Join(err, file.Close())
			}
		}

		select {
		case <-ctx.Done():
			if file != nil {
				return file.Close()
			}

			return nil
		case <-time.After(lookEvery):
		}
	}
}

// openOnly opens the only log of a folder; nil when there is none yet.
func openOnly(folder string) (*os.File, error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.log"))
	if err != nil || len(names) == 0 {
		return nil, err
	}

	file, err := os.Open(names[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // not there yet
	}

	return file, err
}
