// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
)

// EnvLevel names the environment variable that holds the level.
const EnvLevel = "LOG_LEVEL"

// Format is how log lines are written.
type Format string

// The formats.
const (
	// JSON writes one JSON object per line, for programs that read logs.
	JSON Format = "json"
	// Text writes key=value lines, for people.
	Text Format = "text"
)

// Options say what is logged and how. The zero value means INFO and JSON.
type Options struct {
	// Level is the lowest level that is written.
	Level slog.Level
	// Format of the lines. Default: JSON.
	Format Format
}

// Errors of ParseLevel and ParseFormat.
var (
	ErrLevel  = errors.New("log level is not DEBUG, INFO, WARN or ERROR")
	ErrFormat = errors.New("log format is not json or text")
)

// ParseLevel reads DEBUG, INFO, WARN or ERROR, in any case; empty means INFO.
func ParseLevel(text string) (slog.Level, error) {
	switch strings.ToUpper(strings.TrimSpace(text)) {
	case "DEBUG":
		return slog.LevelDebug, nil
	case "", "INFO":
		return slog.LevelInfo, nil
	case "WARN", "WARNING":
		return slog.LevelWarn, nil
	case "ERROR":
		return slog.LevelError, nil
	default:
		return slog.LevelInfo, fmt.Errorf("parse %q: %w", text, ErrLevel)
	}
}

// ParseFormat reads json or text, in any case; empty means JSON.
func ParseFormat(text string) (Format, error) {
	switch format := Format(strings.ToLower(strings.TrimSpace(text))); format {
	case "", JSON:
		return JSON, nil
	case Text:
		return Text, nil
	default:
		return JSON, fmt.Errorf("parse %q: %w", text, ErrFormat)
	}
}

// New returns a logger that writes lines to w.
func New(w io.Writer, options Options) *slog.Logger {
	handlerOptions := &slog.HandlerOptions{Level: options.Level, ReplaceAttr: replace}

	if options.Format == Text {
		return slog.New(levels{slog.NewTextHandler(w, handlerOptions)})
	}

	return slog.New(levels{slog.NewJSONHandler(w, handlerOptions)})
}

// Logr is the same logger for libraries that speak logr, controller-runtime first
// of all: hand it to ctrl.SetLogger once. Their V(1) to V(4) are DEBUG; what is
// chattier is dropped.
func Logr(logger *slog.Logger) logr.Logger {
	return logr.FromSlogHandler(logger.Handler())
}

// levels folds the in-between levels of logr's verbosity into DEBUG.
type levels struct{ slog.Handler }

func (h levels) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < slog.LevelInfo || logged(record) {
		record.Level = slog.LevelDebug
	}

	if !h.Enabled(ctx, record.Level) {
		return nil
	}

	return h.Handler.Handle(ctx, record)
}

// logged says whether the line is about an error that was logged where it arose: one
// whose Logged method says so. Libraries log each error that they are given.
func logged(record slog.Record) bool {
	found := false

	record.Attrs(func(attr slog.Attr) bool {
		err, ok := attr.Value.Any().(error)
		if !ok {
			return true
		}

		told, ok := errors.AsType[interface {
			error
			Logged() bool
		}](err)
		found = ok && told.Logged()

		return !found
	})

	return found
}

func (h levels) WithAttrs(attrs []slog.Attr) slog.Handler {
	return levels{h.Handler.WithAttrs(attrs)}
}

func (h levels) WithGroup(name string) slog.Handler {
	return levels{h.Handler.WithGroup(name)}
}

// replace redacts attributes whose key names a credential.
func replace(_ []string, attr slog.Attr) slog.Attr {
	if !sensitive(attr.Key) || attr.Value.Kind() == slog.KindBool {
		return attr
	}

	return slog.String(attr.Key, Redacted)
}

// sensitive tells keys whose values are credentials. Keys such as secretName, which
// only name where a credential is kept, are not among them.
func sensitive(key string) bool {
	for _, end := range []string{
		"password", "passwd", "token", "authorization", "privatekey", "apikey", "jitconfig", "csrfpreventiontoken",
		"secretvalue", "credential", "ticket", "cookie",
	} {
		if endsIn(key, end) {
			return true
		}
	}

	return false
}

// endsIn says whether the key ends in the word, whatever its case and with or without
// separators. Every attribute of every line asks, so it makes no copies.
func endsIn(key, word string) bool {
	left := len(word)

	for i := len(key) - 1; i >= 0 && left > 0; i-- {
		c := key[i]
		if c == '_' || c == '-' || c == '.' {
			continue
		}

		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}

		if c != word[left-1] {
			return false
		}

		left--
	}

	return left == 0
}
