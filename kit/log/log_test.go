// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

func TestParseLevel(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		text string
		want slog.Level
		err  error
	}{
		"empty is INFO":      {"", slog.LevelInfo, nil},
		"DEBUG":              {"DEBUG", slog.LevelDebug, nil},
		"lower case":         {"warn", slog.LevelWarn, nil},
		"ERROR with a space": {" ERROR ", slog.LevelError, nil},
		"unknown":            {"LOUD", slog.LevelInfo, log.ErrLevel},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := log.ParseLevel(tc.text)
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("ParseLevel(%q) = %v, %v; want %v, %v", tc.text, got, err, tc.want, tc.err)
			}
		})
	}
}

func TestParseFormat(t *testing.T) {
	t.Parallel()

	if got, err := log.ParseFormat("Text"); got != log.Text || err != nil {
		t.Errorf("ParseFormat(Text) = %v, %v", got, err)
	}

	if got, err := log.ParseFormat(""); got != log.JSON || err != nil {
		t.Errorf(`ParseFormat("") = %v, %v`, got, err)
	}

	if _, err := log.ParseFormat("xml"); !errors.Is(err, log.ErrFormat) {
		t.Errorf("ParseFormat(xml) = %v, want %v", err, log.ErrFormat)
	}
}

func TestLevelsAcrossTheBridge(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		level slog.Level
		want  []string
	}{
		"info":  {slog.LevelInfo, []string{"INFO zero", "ERROR broken"}},
		"debug": {slog.LevelDebug, []string{"INFO zero", "DEBUG one", "DEBUG four", "ERROR broken"}},
		"error": {slog.LevelError, []string{"ERROR broken"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var out bytes.Buffer

			logger := log.ToLogr(log.New(&out, log.Options{Level: tc.level})).WithName("x").WithValues("k", "v")
			logger.Info("zero")
			logger.V(1).Info("one")
			logger.V(4).Info("four")
			logger.V(5).Info("five")
			logger.Error(errors.ErrUnsupported, "broken")

			if got := splitLines(t, out.String()); strings.Join(got, "|") != strings.Join(tc.want, "|") {
				t.Errorf("lines = %v, want %v", got, tc.want)
			}
		})
	}
}

func splitLines(t *testing.T, out string) []string {
	t.Helper()

	var got []string

	for line := range strings.Lines(out) {
		var entry struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}

		got = append(got, entry.Level+" "+entry.Msg)
	}

	return got
}

// formatAll returns the ways in which a value is converted to text.
func formatAll(t *testing.T, s log.Secret) []string {
	t.Helper()

	type holder struct {
		Name   string
		Public log.Secret
		hidden log.Secret
	}

	h := holder{Name: "x", Public: s, hidden: s}
	got := []string{h.hidden.String()}

	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%08.3f", "%U"} {
		got = append(got, fmt.Sprintf(verb, s), fmt.Sprintf(verb, &s), fmt.Sprintf(verb, h), fmt.Sprintf(verb, []log.Secret{s}))
	}

	for _, value := range []any{s, &s, h, map[string]log.Secret{"k": s}} {
		asJSON, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}

		asYAML, err := yaml.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}

		got = append(got, string(asJSON), string(asYAML))
	}

	for _, format := range []log.Format{log.JSON, log.Text} {
		var out bytes.Buffer

		logger := log.New(&out, log.Options{Level: slog.LevelDebug, Format: format})
		logger.Info("m", "a", s, "b", h, "c", []any{s}, slog.Group("g", "d", s))
		logger.With("token", s.Reveal(), "runnerPassword", s.Reveal()).Debug("m", "apiKey", s.Reveal())
		log.ToLogr(logger).Info("m", "a", s, "b", h, "jitConfig", s.Reveal())
		got = append(got, out.String())
	}

	return append(got, fmt.Errorf("log in with %s: %w", s, errors.ErrUnsupported).Error())
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()

	property.Check(t, "no printing holds the text", property.Options{}, prop.ForAll(func(text string) string {
		text = "§" + text + "§"
		for _, printed := range formatAll(t, log.NewSecret(text)) {
			if strings.Contains(printed, text) || strings.Contains(printed, fmt.Sprintf("%x", text)) {
				return "printed as " + printed
			}
		}

		return ""
	}, gen.AlphaString()))
}

func TestSecret(t *testing.T) {
	t.Parallel()

	var none log.Secret

	full := log.NewSecret("hunter2")

	if !none.IsEmpty() || none.String() != "" || full.IsEmpty() || full.String() != log.Redacted {
		t.Errorf("none = %q, full = %q", none, full)
	}

	if full.Reveal() != "hunter2" || none.Reveal() != "" {
		t.Error("a secret loses its text")
	}
}

func TestSecretNamesAreKept(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	log.New(&out, log.Options{Format: log.Text}).Info("m", "secretName", "ci/token", "hasToken", true, "tokenFile", "token.txt")

	for _, want := range []string{"secretName=ci/token", "hasToken=true", "tokenFile=token.txt"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %q", want, out.String())
		}
	}
}

// TestLinesAreNotForged checks that a record is one line in both formats, and that its message, keys and values, which
// can quote users and other systems, cannot forge another line and control no terminal.
func TestLinesAreNotForged(t *testing.T) {
	t.Parallel()

	for name, hostile := range map[string]string{
		"line break":       "a\n{\"level\":\"ERROR\",\"msg\":\"forged\"}\ntime=now level=ERROR msg=forged",
		"carriage return":  "a\rlevel=ERROR msg=forged",
		"Unicode breaks":   "a\u0085b\u2028c\u2029d\ve\f",
		"quotes":           `a" level=ERROR msg="forged`,
		"escape sequences": "a\x1b[2J\x1b]0;title\x07\x1b[31mred",
		"C1 controls":      "a\u009b2J\u009d0;title\u009c",
		"delete":           "a\x7f\x7f\x7f",
		"bidi":             "a\u202eb\u2066c\u200fd",
		"tags":             "a\U000e0001b",
		"invalid UTF-8":    "a\xff\x9b2J\xc2",
		"NUL":              "a\x00b",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			for _, format := range []log.Format{log.JSON, log.Text} {
				var out bytes.Buffer

				logger := log.New(&out, log.Options{Level: slog.LevelDebug, Format: format})
				logger.With(hostile, hostile).WithGroup(hostile).Info(
					hostile, hostile, hostile, "error", errors.New(hostile), //nolint:sloglint // the message is hostile, too
					"any", map[string]any{hostile: []string{hostile}}, "bytes", []byte(hostile), slog.Group(hostile, "k", hostile))
				log.ToLogr(logger).WithName(hostile).WithValues(hostile, hostile).Error(errors.New(hostile), hostile, "k", hostile)

				checkLines(t, format, out.String(), string([]rune(hostile)))
			}
		})
	}
}

// checkLines checks that the output has two lines of printable characters, and that the messages of JSON are complete.
func checkLines(t *testing.T, format log.Format, out, message string) {
	t.Helper()

	if n := strings.Count(out, "\n"); n != 2 || !strings.HasSuffix(out, "\n") {
		t.Errorf("%s: 2 records are %d lines: %q", format, n, out)
	}

	if i := strings.IndexFunc(out, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
		t.Errorf("%s: the character after %q is not printable: %q", format, out[:i], out[i:])
	}

	if format == log.Text {
		return
	}

	for line := range strings.Lines(out) {
		var entry struct{ Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Msg != message {
			t.Errorf("the message is %q, %v; want %q", entry.Msg, err, message)
		}
	}
}
