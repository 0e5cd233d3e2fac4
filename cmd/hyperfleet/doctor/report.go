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

// Level is the severity of a finding.
type Level string

// Levels.
const (
	// OK is a check that found no problem.
	OK Level = "ok"
	// Warning is a finding that a person should know, or a check that was not possible.
	Warning Level = "warning"
	// Problem is a finding that a person has to fix.
	Problem Level = "problem"
)

// Finding is the result of one check. It is part of the JSON output: fields may be added, but not removed or
// changed.
type Finding struct {
	Level Level `json:"level"`
	// Subject describes what the finding is about, such as "CRDs of runners", or the kind and the name of an
	// object.
	Subject string `json:"subject"`
	// Kind, Namespace and Name identify the object, if the finding is about an object.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Reason is the reason of the object's condition.
	Reason string `json:"reason,omitempty"`
	// Message describes the problem and its fix.
	Message string `json:"message"`
	// ForSeconds is the time in seconds for which the object has been in this state, if it is known.
	ForSeconds *float64 `json:"forSeconds,omitempty"`
}

// Report contains all findings. It is the JSON output: fields may be added, but not removed or changed.
type Report struct {
	// APIServer is the version of the API server.
	APIServer string    `json:"apiServer"`
	Findings  []Finding `json:"findings"`
	// Objects is the number of objects that were checked, by kind.
	Objects  map[string]int `json:"objects"`
	Problems int            `json:"problems"`
	Warnings int            `json:"warnings"`
	// Trial is the result of --try; it is nil without --try.
	Trial *Trial `json:"try,omitempty"`
}

func (r *Report) add(f Finding) {
	r.Findings = append(r.Findings, f)

	switch f.Level {
	case Problem:
		r.Problems++
	case Warning:
		r.Warnings++
	case OK:
	}
}

func (r *Report) addf(level Level, subject, format string, args ...any) {
	r.add(Finding{Level: level, Subject: subject, Message: fmt.Sprintf(format, args...)})
}

// print prints the report as text.
func (r *Report) print(out io.Writer, _ bool) error {
	var text strings.Builder

	fmt.Fprintf(&text, "%-8s  API server: %s\n", OK, cli.SanitizeLine(r.APIServer))

	for _, f := range r.Findings {
		fmt.Fprintf(&text, "%-8s  %s\n", f.Level, f.formatLine())

		if f.Reason != "" && f.Message != "" {
			fmt.Fprintf(&text, "%-8s    %s\n", "", cli.SanitizeLine(f.Message))
		}
	}

	fmt.Fprintf(&text, "\n%s, %s\n", english.Plural(r.Problems, "problem", ""), english.Plural(r.Warnings, "warning", ""))

	_, err := io.WriteString(out, cli.FitTerminal(out, text.String()))

	return err
}

// formatLine returns the finding as one line. If the finding has a reason, the line has the reason instead of
// the message.
func (f Finding) formatLine() string {
	text := f.Subject + ": " + cmp.Or(f.Reason, f.Message)
	if f.ForSeconds != nil {
		text += ", for " + duration.HumanDuration(time.Duration(*f.ForSeconds*float64(time.Second)))
	}

	return cli.SanitizeLine(text)
}
