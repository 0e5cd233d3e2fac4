// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package zzglob stands in for the module of that name, whose host is not one that every
// module proxy serves: the calls that buildkite-agent makes, over doublestar. Files that
// jobs upload or hash are found by it, steps of a pipeline left out; no more is.
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

// Pattern is a glob with * and **, and {a,b}.
type Pattern struct{ text string }

type settings struct{ literalTilde, followLinks, fixedDir bool }

// Option changes how a pattern is read or walked.
type Option func(*settings)

// ExpandTilde says whether a leading ~ is the home directory; by default it is.
func ExpandTilde(yes bool) Option { return func(s *settings) { s.literalTilde = !yes } }

// TraverseSymlinks says whether links to directories are followed; by default they are not.
func TraverseSymlinks(yes bool) Option { return func(s *settings) { s.followLinks = yes } }

// WalkIntermediateDirs says whether the function hears of the directory that a walk begins
// in, too.
func WalkIntermediateDirs(yes bool) Option { return func(s *settings) { s.fixedDir = yes } }

func apply(options []Option) (out settings) {
	for _, option := range options {
		option(&out)
	}

	return out
}

// Parse reads a pattern.
func Parse(text string, options ...Option) (*Pattern, error) {
	if rest, is := strings.CutPrefix(text, "~"); is && !apply(options).literalTilde && (rest == "" || rest[0] == '/') {
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

// Match says whether a path is one of the pattern's.
func (p *Pattern) Match(path string) bool {
	return doublestar.PathMatchUnvalidated(p.text, path)
}

// Glob calls walk for every path of the pattern.
func (p *Pattern) Glob(walk fs.WalkDirFunc, options ...Option) error {
	how := apply(options)
	base, rest := doublestar.SplitPattern(filepath.ToSlash(p.text))

	// A walk tells of no error of its own where it begins.
	if info, err := os.Stat(base); err != nil || how.fixedDir {
		var entry fs.DirEntry
		if err == nil {
			entry = fs.FileInfoToDirEntry(info)
		}

		if walkErr := walk(base, entry, err); err != nil || walkErr != nil {
			return walkErr
		}
	}

	var opts []doublestar.GlobOption
	if !how.followLinks {
		opts = append(opts, doublestar.WithNoFollow())
	}

	return doublestar.GlobWalk(os.DirFS(base), rest, func(path string, d fs.DirEntry) error {
		return walk(filepath.Join(base, path), d, nil)
	}, opts...)
}

// MultiGlob is Glob for several patterns, until one fails or ctx ends.
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
