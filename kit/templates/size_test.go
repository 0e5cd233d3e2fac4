// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"text/template"
)

// TestNothingPrintedIsLongerThanItsBound: printf is refused by the bound, before it prints.
func TestNothingPrintedIsLongerThanItsBound(t *testing.T) {
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
					if got, bound := len(fmt.Sprintf(format, args...)), formatted(format, args); got > bound {
						t.Errorf("printf %q of %T has %d bytes, its bound is %d", format, value, got, bound)
					}
				}
			}
		}

		if got, bound := len(fmt.Sprintln(value)), Size(value); got > bound {
			t.Errorf("println of %T has %d bytes, its bound is %d", value, got, bound)
		}
	}
}

// TestOneTemplateIsExecutedManyTimes: what one execution takes is not missing in the next.
func TestOneTemplateIsExecutedManyTimes(t *testing.T) {
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

// TestExecutionsAtOnce: each has its own budget, also after one that took more than it may.
func TestExecutionsAtOnce(t *testing.T) {
	t.Parallel()

	parsed, err := Parse("x", `{{range .}}{{printf "%d" .}}{{end}}`, Limits{Output: 100, Work: 4000, Steps: 100},
		func(*Budget) template.FuncMap { return template.FuncMap{} }, nil)
	if err != nil {
		t.Fatal(err)
	}

	var group sync.WaitGroup

	for i := range 8 {
		group.Go(func() {
			for range 100 {
				if _, err := parsed.Execute(make([]int, 1000)); err == nil {
					t.Error("a thousand steps are taken")
				}

				if out, err := parsed.Execute([]int{i, i}); err != nil || out != fmt.Sprint(i)+fmt.Sprint(i) {
					t.Errorf("result %q, error %v", out, err)
				}
			}
		})
	}

	group.Wait()
}
