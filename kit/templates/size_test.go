// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
)

// TestPrintedTextFitsBound checks the bound by which printf is rejected before it prints.
func TestPrintedTextFitsBound(t *testing.T) {
	t.Parallel()

	values := []any{
		"", "a\x00\xff<é😀", strings.Repeat("\xff", 1000), []byte{0, 255, 7}, make([]byte, 100), 1, -1 << 40, uint64(math.MaxUint64),
		math.MaxFloat64, -math.SmallestNonzeroFloat64, true, nil, []string{"a", "b\n"}, map[string]any{"k": 1.5e300, "l": []any{nil, "x"}},
		struct {
			LongNameOfAField string
			P                *int
		}{"x", nil}, complex(1e300, -1e300),
	}
	flags := []string{"", "+", "#", "-", " ", "0", "# ", "+#", "700", "-700", "0700", "700.700", ".700", "[1]", "[2]*[1]"}

	for _, value := range values {
		for _, verb := range "vTtbcdoOqxXUeEfFgGsp!" {
			for _, flag := range flags {
				for _, format := range []string{"%" + flag + string(verb), strings.Repeat("%"+flag+string(verb), 3), "%% text"} {
					args := []any{value, 900}
					if got, bound := len(fmt.Sprintf(format, args...)), maxFormattedSize(format, args); got > bound {
						t.Errorf("printf %q of %T has %d bytes, its bound is %d", format, value, got, bound)
					}
				}
			}
		}

		if got, bound := len(fmt.Sprintln(value)), MaxPrintedSize(value); got > bound {
			t.Errorf("println of %T has %d bytes, its bound is %d", value, got, bound)
		}
	}
}

// TestTemplateIsExecutedRepeatedly checks that each execution has an unused budget.
func TestTemplateIsExecutedRepeatedly(t *testing.T) {
	t.Parallel()

	parsed, err := Parse("x", `{{range 50}}{{printf "%01d" 1}}{{end}}`, Limits{Output: 100, Work: 4000, Steps: 200},
		func(*Budget) template.FuncMap { return template.FuncMap{} }, nil)
	if err != nil {
		t.Fatal(err)
	}

	for range 100 {
		if out, err := parsed.Execute(nil); err != nil || len(out) != 50 {
			t.Fatalf("result %q, error %v", out, err)
		}
	}
}

// The used budget or a failure of one execution does not affect later or concurrent executions.
func TestExecutionsShareNothing(t *testing.T) {
	t.Parallel()

	text := `{{define "deep"}}{{if gt . 0}}{{template "deep" (less .)}}{{end}}{{end}}{{template "deep" .}}{{printf "%04d" .}}`

	parsed, err := Parse("x", text, Limits{Output: 100, Work: 5000, Steps: 400},
		func(*Budget) template.FuncMap { return template.FuncMap{"less": func(n int) int { return n - 1 }} }, nil)
	if err != nil {
		t.Fatal(err)
	}

	var all sync.WaitGroup

	for n := range 8 {
		all.Go(func() {
			for range 50 {
				if _, err := parsed.Execute(MaxDepth + n); err == nil {
					t.Error("no error of a template that calls itself too deep")
				}

				if out, err := parsed.Execute(n); err != nil || out != fmt.Sprintf("%04d", n) {
					t.Errorf("of %d: result %q, error %v", n, out, err)
				}
			}
		})
	}

	all.Wait()
}
