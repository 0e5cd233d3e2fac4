// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/platform/cel"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestResultSizesAreCheckedBeforeAllocation checks that an expression whose result would have
// terabytes fails before anything is allocated for the result.
func TestResultSizesAreCheckedBeforeAllocation(t *testing.T) {
	const maxGrowth = 64 << 20

	long := strings.Repeat("x", 2500)
	lists := "[" + strings.Repeat("list,", 2000) + "list]"
	values := map[string]any{"x": strings.Repeat("a", 1<<20), "list": make([]any, 100)}

	for expression, want := range map[string]string{
		`x.replace("a", x)`:                          "replace: the result would have more than 4194304 bytes",
		`x.replace("", x)`:                           "replace: the result would have more than 4194304 bytes",
		`x.replace("a", x, 1000000)`:                 "replace: the result would have more than 4194304 bytes",
		`dyn(x).replace("a", x)`:                     "replace: the result would have more than 4194304 bytes",
		`[x,x,x,x,x].join(x)`:                        "join: the result would have more than 4194304 bytes",
		`lists.range(1000).map(i, x).join("")`:       "join: the result would have more than 4194304 bytes",
		`"%s%s".format([x+x, x+x+x])`:                "format: the result would have more than 4194304 bytes",
		`x+x+x+x+x`:                                  "+: the result would have more than 4194304 bytes",
		`[x].map(y, y+y).map(z, z+z).map(y, y+y)[0]`: "+: the result would have more than 4194304 bytes",
		`[list]` + strings.Repeat(`.map(y, `+strings.Repeat("y+", 32)+`y)`, 2) + `[0].size()`: "+: the result would have more than 100000 elements",
		`toJson(lists.range(1000).map(i, x))`:                                                 "toJson: the result would have more than 4194304 bytes",
		lists + `.flatten()`:                                                                  "flatten: the result would have more than 100000 elements",
		`x.split("")`:                                                                         "split: the result would have more than 100000 elements",
		lists:                                                                                 "more than 200000 values",
		`quantity("1e99999999").isLessThan(quantity("1"))`:                                    "quantity: the text has more than 64 bytes, or an exponent of more than two digits",
		`quantity(dyn("1") + "E-99999999")`:                                                   "quantity: the text has more than 64 bytes, or an exponent of more than two digits",
		`isQuantity("1e-99999999")`:                                                           "isQuantity: the text has more than 64 bytes, or an exponent of more than two digits",
		`quantity(x)`:                                                                         "quantity: the text has more than 64 bytes, or an exponent of more than two digits",
		`"` + long + `"`:                                                                      "",
		`x.replace("a", "bb").size()`:                                                         "",
		`toJson([x, 1, null]).size()`:                                                         "",
		`["a", "b"].join(", ")`:                                                               "",
		`"%s is %d".format(["a", 1])`:                                                         "",
		`(1 + 2) + size([1] + [2] + list)`:                                                    "",
		`duration("1s") + duration("2s")`:                                                     "",
		`dyn(1) + dyn(2)`:                                                                     "",
		`dyn("a") + dyn("b")`:                                                                 "",
		`timestamp("2026-01-01T00:00:00Z") + duration("2s")`:                                  "",
	} {
		name, _, _ := strings.Cut(expression, long)
		t.Run(name[:min(len(name), 50)], func(t *testing.T) {
			program, err := newEnv(t, cel.Options{Variables: cel.NewDynVariables("x", "list")}).Compile(expression)
			must.Do(t, err)

			var before, after runtime.MemStats

			runtime.ReadMemStats(&before)

			_, err = program.Eval(t.Context(), values)

			runtime.ReadMemStats(&after)

			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("error %.200v, want %q", err, want)
			}

			if grown := after.TotalAlloc - before.TotalAlloc; grown > maxGrowth {
				t.Errorf("the evaluation allocated %d bytes, want at most %d", grown, maxGrowth)
			}
		})
	}
}
