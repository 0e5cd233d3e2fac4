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

// Line is a line of a machine's console, with the time at which its end was read.
type Line struct {
	Time time.Time
	Text string
}

// pollInterval is the interval at which a console's file is read. It is also the precision of Line.Time.
const pollInterval = 10 * time.Millisecond

// escapeSequences matches the control sequences of terminals, for example for colors.
var escapeSequences = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// Console stores the output of a machine as lines.
type Console struct {
	mu          sync.Mutex
	lines       []Line
	partialLine []byte
}

// Write stores output of the machine. It never fails.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := time.Now()
	c.partialLine = append(c.partialLine, p...)

	for {
		end := bytes.IndexByte(c.partialLine, '\n')
		if end < 0 {
			return len(p), nil
		}

		text := escapeSequences.ReplaceAll(bytes.TrimRight(c.partialLine[:end], "\r"), nil)
		c.lines = append(c.lines, Line{Time: now, Text: string(text)})
		c.partialLine = c.partialLine[end+1:]
	}
}

// FindFirst returns the first line that matches, and false if there is none.
func (c *Console) FindFirst(pattern *regexp.Regexp) (Line, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, line := range c.lines {
		if pattern.MatchString(line.Text) {
			return line, true
		}
	}

	return Line{}, false
}

// Follow copies the log file of a directory into the console as the file grows, until ctx ends.
func (c *Console) Follow(ctx context.Context, folder string) error {
	var file *os.File

	for {
		if file == nil {
			var err error
			if file, err = openLog(folder); err != nil {
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
		case <-time.After(pollInterval):
		}
	}
}

// openLog opens the log file of a directory. It returns nil if there is none yet.
func openLog(folder string) (*os.File, error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.log"))
	if err != nil || len(names) == 0 {
		return nil, err
	}

	file, err := os.Open(names[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nil means that the file does not exist yet
	}

	return file, err
}
