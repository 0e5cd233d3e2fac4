// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package zzglob replaces the module with the same name, because not every module proxy serves its host. It implements
// the functions that buildkite-agent calls, on top of doublestar. buildkite-agent uses them to find files that jobs
// upload or hash, and to skip steps of a pipeline.
package zzglob

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Pattern is a glob pattern with *, ** and {a,b}.
type Pattern struct{ text string }

type settings struct{ literalTilde, followLinks, fixedDir bool }

// Option is an option for parsing or walking a pattern.
type Option func(*settings)

// ExpandTilde replaces a leading ~ with the home directory. It is enabled by default.
func ExpandTilde(enabled bool) Option { return func(s *settings) { s.literalTilde = !enabled } }

// TraverseSymlinks follows symbolic links to directories. It is disabled by default.
func TraverseSymlinks(enabled bool) Option { return func(s *settings) { s.followLinks = enabled } }

// WalkIntermediateDirs calls the function also for the directory in which the walk starts.
func WalkIntermediateDirs(enabled bool) Option { return func(s *settings) { s.fixedDir = enabled } }

func applyOptions(options []Option) (out settings) {
	for _, option := range options {
		option(&out)
	}

	return out
}

// Parse parses a pattern.
func Parse(text string, options ...Option) (*Pattern, error) {
	if rest, hasTilde := strings.CutPrefix(text, "~"); hasTilde && !applyOptions(options).literalTilde && (rest == "" || rest[0] == '/') {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("expand ~ of %q: %w", text, err)
		}

		text = home + rest
	}

	if text = filepath.Clean(text); !doublestar.ValidatePathPattern(text) {
		return nil, fmt.Errorf("parse %q: %w", text, doublestar.ErrBadPattern)
	}

	return &Pattern{text}, nil
}

// Match returns true if a path matches the pattern.
func (p *Pattern) Match(path string) bool {
	return doublestar.PathMatchUnvalidated(p.text, path)
}

// Glob calls walk for each path that matches the pattern.
func (p *Pattern) Glob(walk fs.WalkDirFunc, options ...Option) error {
	opts := applyOptions(options)
	base, rest := doublestar.SplitPattern(filepath.ToSlash(p.text))

	// Check the start directory, because GlobWalk does not report an error for it.
	if info, err := os.Stat(base); err != nil || opts.fixedDir {
		var entry fs.DirEntry
		if err == nil {
			entry = fs.FileInfoToDirEntry(info)
		}

		if walkErr := walk(base, entry, err); err != nil || walkErr != nil {
			return walkErr
		}
	}

	var globOpts []doublestar.GlobOption
	if !opts.followLinks {
		globOpts = append(globOpts, doublestar.WithNoFollow())
	}

	return doublestar.GlobWalk(os.DirFS(base), rest, func(path string, d fs.DirEntry) error {
		return walk(filepath.Join(base, path), d, nil)
	}, globOpts...)
}

// MultiGlob calls Glob for each pattern, until one of them fails or ctx is done.
func MultiGlob(ctx context.Context, patterns []*Pattern, walk fs.WalkDirFunc, options ...Option) error {
	for _, p := range patterns {
		if err := ctx.Err(); err != nil {
			return err
		}

		if err := p.Glob(walk, options...); err != nil {
			return err
		}
	}

	return nil
}
