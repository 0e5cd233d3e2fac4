// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/platform/cel"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestListReads has the paths below resources, with slashes and in their order in the expression. A dot stands for the whole
// variable.
func TestListReads(t *testing.T) {
	t.Parallel()

	env := newEnv(t, cel.Options{})

	for expression, want := range map[string]string{
		// Fields.
		`resources.job.status.phase == "x"`:                             "job/status/phase",
		`resources.?job.?status.?phase.orValue("") == x`:                "job/status/phase",
		`resources["job"]["status"]`:                                    "job/status",
		`resources[?"job"].?status.hasValue()`:                          "job/status",
		`has(resources.job.status)`:                                     "job/status",
		`resources.job.status.conditions[0].type`:                       "job/status/conditions",
		`resources.job.status[x]`:                                       "job/status",
		`resources.job.status.conditions.exists(c, c.type == x.type)`:   "job/status/conditions",
		`conditionStatus(resources.job.status.conditions, "Ready")`:     "job/status/conditions",
		`resources.?job.value().spec`:                                   "job/spec",
		`resources.?job.orValue(resources.namespace).status`:            "job/status namespace",
		`[resources.job.a, {resources.job.b: resources.job.c}]`:         "job/a job/b job/c",
		`x ? resources.job.a : resources.namespace.b`:                   "job/a namespace/b",
		`resources.?job.optMap(j, j.status)`:                            "job",
		`resources.?job.optFlatMap(j, j.?status).orValue(1)`:            "job",
		`resources.?job.or(resources.?namespace).?status`:               "job namespace",
		`[1].map(i, resources.job.status)`:                              "job/status",
		`toJson(resources.job)`:                                         "job",
		`resources.job == null`:                                         "job",
		`resources.job in list`:                                         "job",
		`size(resources.job)`:                                           "job",
		`resources == {}`:                                               ".",
		`resources.exists(name, resources[name].status == "x")`:         ". .",
		`x.status.phase == resources.job.status`:                        "job/status",
		`dig(resources.job, "status.conditions.0.type") == "x"`:         "job/status",
		`dig(resources.?job, "metadata.annotations.a.io/b", "")`:        "job/metadata/annotations",
		`dig(resources.job.metadata, "labels.a.io/b", resources.job.x)`: "job/metadata/labels job/x",
		`dig(resources.job.status, "hard.requests.cpu")`:                "job/status",
		`dig(resources.?job.orValue({}), x)`:                            "job",
		`dig(resources, "job.spec.hard.pods")`:                          "job/spec",
		`dig(resources.job, "status.hard").pods`:                        "job/status",
		`dig(resources, "job.status.hard")[x]`:                          "job/status",
		`dig(x, "resources.job")`:                                       "",
		// Only which fields there are.
		`resources.?job.hasValue()`:                  "",
		`has(resources.job) && "job" in resources`:   "",
		`size(resources) == 0 || resources.size()>1`: "",
		`x in resources`:                             ".",
		`x.resources.job`:                            "",
	} {
		program, err := env.Compile(expression)
		must.Do(t, err)

		var got []string

		for _, path := range program.ListReads("resources") {
			got = append(got, strings.Join(path, "/"))
			if len(path) == 0 {
				got[len(got)-1] = "."
			}
		}

		slices.Sort(got)

		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: reads (-want +got):\n%s", expression, diff)
		}
	}
}
