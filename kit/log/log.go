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

// EnvLevel is the environment variable with the log level.
const EnvLevel = "LOG_LEVEL"

// Format is the format of log lines.
type Format string

// The formats.
const (
	// JSON writes one JSON object per line, for programs that read logs.
	JSON Format = "json"
	// Text writes key=value lines, for people.
	Text Format = "text"
)

// Options configure a logger. The zero value means INFO and JSON.
type Options struct {
	// Level is the lowest level that is written.
	Level slog.Level
	// Format is the format of the lines. Default: JSON.
	Format Format
}

// Errors of ParseLevel and ParseFormat.
var (
	ErrLevel  = errors.New("log level is not DEBUG, INFO, WARN or ERROR")
	ErrFormat = errors.New("log format is not json or text")
)

// ParseLevel parses DEBUG, INFO, WARN, WARNING or ERROR, in any case. An empty text means INFO.
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

// ParseFormat parses json or text, in any case. An empty string means JSON.
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

// New returns a logger that writes lines to w. A record is always one line, and its texts control no
// terminal, because they can quote other systems and users.
func New(w io.Writer, options Options) *slog.Logger {
	handlerOptions := &slog.HandlerOptions{Level: options.Level, ReplaceAttr: redactAttr}
	w = EscapeUnprintable(w)

	if options.Format == Text {
		return slog.New(levelHandler{slog.NewTextHandler(w, handlerOptions)})
	}

	return slog.New(levelHandler{slog.NewJSONHandler(w, handlerOptions)})
}

// ToLogr converts the logger for libraries that use logr, mainly controller-runtime (pass it to
// ctrl.SetLogger once). Lines at V(1) to V(4) are logged at DEBUG. More verbose lines are dropped.
func ToLogr(logger *slog.Logger) logr.Logger {
	return logr.FromSlogHandler(logger.Handler())
}

// levelHandler logs all levels below INFO, which logr's verbosity creates, at DEBUG.
type levelHandler struct{ slog.Handler }

// Handle also logs lines about an error that was already logged at DEBUG.
func (h levelHandler) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < slog.LevelInfo || isLogged(record) {
		record.Level = slog.LevelDebug
	}

	if !h.Enabled(ctx, record.Level) {
		return nil
	}

	return h.Handler.Handle(ctx, record)
}

// isLogged returns whether the line has an error that was already logged, that is, an error whose
// method Logged returns true. Libraries such as controller-runtime log each error that a caller
// returns to them.
func isLogged(record slog.Record) bool {
	found := false

	record.Attrs(func(attr slog.Attr) bool {
		err, ok := attr.Value.Any().(error)
		if !ok {
			return true
		}

		marked, ok := errors.AsType[interface {
			error
			Logged() bool
		}](err)
		found = ok && marked.Logged()

		return !found
	})

	return found
}

func (h levelHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return levelHandler{h.Handler.WithAttrs(attrs)}
}

func (h levelHandler) WithGroup(name string) slog.Handler {
	return levelHandler{h.Handler.WithGroup(name)}
}

// redactAttr redacts an attribute if its key names a credential. It keeps booleans.
func redactAttr(_ []string, attr slog.Attr) slog.Attr {
	if !isSensitive(attr.Key) || attr.Value.Kind() == slog.KindBool {
		return attr
	}

	return slog.String(attr.Key, Redacted)
}

// isSensitive returns whether the value of the key is a credential. It returns false for keys such
// as secretName, whose values only name the place of a credential.
func isSensitive(key string) bool {
	for _, suffix := range []string{
		"password", "passwd", "token", "authorization", "privatekey", "apikey", "jitconfig", "csrfpreventiontoken",
		"secretvalue", "credential", "ticket", "cookie",
	} {
		if hasSuffixFold(key, suffix) {
			return true
		}
	}

	return false
}

// hasSuffixFold returns whether the key ends in the word. It ignores case and the separators _, -
// and . in the key. It does not allocate, because it runs for every attribute of every line.
func hasSuffixFold(key, word string) bool {
	rest := len(word)

	for i := len(key) - 1; i >= 0 && rest > 0; i-- {
		c := key[i]
		if c == '_' || c == '-' || c == '.' {
			continue
		}

		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}

		if c != word[rest-1] {
			return false
		}

		rest--
	}

	return rest == 0
}
