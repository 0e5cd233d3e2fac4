// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// Level says how bad a finding is.
type Level string

// Levels.
const (
	// Fine is what was looked at and is well.
	Fine Level = "ok"
	// Warning is what somebody should know, and what could not be looked at.
	Warning Level = "warning"
	// Problem is what keeps something from working until a person acts.
	Problem Level = "problem"
)

// Finding is one thing that was found, in JSON output. Fields are only ever added.
type Finding struct {
	Level Level `json:"level"`
	// Subject is what it is about, in words: the kinds of an area, or an object.
	Subject string `json:"subject"`
	// Kind, Namespace and Name of the object, if it is about one.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Reason in one word, as in the object's condition.
	Reason string `json:"reason,omitempty"`
	// Message says what is wrong, and names the fix.
	Message string `json:"message"`
	// ForSeconds is since when it is so, where that is known.
	ForSeconds *float64 `json:"forSeconds,omitempty"`
}

// Report is all that was found, in JSON output. Fields are only ever added.
type Report struct {
	// APIServer is its version.
	APIServer string    `json:"apiServer"`
	Findings  []Finding `json:"findings"`
	// Objects are how many of each kind were looked at.
	Objects  map[string]int `json:"objects"`
	Problems int            `json:"problems"`
	Warnings int            `json:"warnings"`
	// Try is the machine that was made, with --try.
	Try *Trial `json:"try,omitempty"`
}

func (r *Report) add(f Finding) {
	r.Findings = append(r.Findings, f)

	switch f.Level {
	case Problem:
		r.Problems++
	case Warning:
		r.Warnings++
	case Fine:
	}
}

func (r *Report) addf(level Level, subject, format string, args ...any) {
	r.add(Finding{Level: level, Subject: subject, Message: fmt.Sprintf(format, args...)})
}

func (r *Report) print(out io.Writer, form string) error {
	if form == cli.OutputJSON {
		return cli.JSON(out, r)
	}

	var text strings.Builder

	fmt.Fprintf(&text, "%-8s  API server: %s\n", Fine, cli.Line(r.APIServer))

	for _, f := range r.Findings {
		fmt.Fprintf(&text, "%-8s  %s\n", f.Level, f.line())

		if f.Reason != "" && f.Message != "" {
			fmt.Fprintf(&text, "%-8s    %s\n", "", cli.Line(f.Message))
		}
	}

	fmt.Fprintf(&text, "\n%s, %s\n", english.Plural(r.Problems, "problem", ""), english.Plural(r.Warnings, "warning", ""))

	if _, err := io.WriteString(out, text.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

// line is the finding in one line; the message of an object comes in a second one.
func (f Finding) line() string {
	text := f.Subject + ": " + cmp.Or(f.Reason, f.Message)
	if f.ForSeconds != nil {
		text += ", for " + duration.HumanDuration(time.Duration(*f.ForSeconds*float64(time.Second)))
	}

	return cli.Line(text)
}
