// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"testing"
)

func TestAffected(t *testing.T) {
	t.Parallel()

	const m = "example.com/m"

	tests := map[string]testProgram{
		m:                  {deps: []string{m}},
		m + "/kit/log":     {deps: []string{m + "/kit/log"}},
		m + "/runners":     {deps: []string{m + "/runners", m + "/kit/log", m + "/test/kube"}},
		m + "/hosts":       {deps: []string{m + "/hosts", m + "/test/kube"}},
		m + "/test/kube":   {deps: []string{m + "/test/kube"}},
		m + "/test/guides": {deps: []string{m + "/test/guides"}},
		m + "/hack/site":   {deps: []string{m + "/hack/site"}},
	}
	cases := map[string]struct {
		folders, want []string
	}{
		"no changes":                     {want: []string{m}},
		"a package":                      {folders: []string{"kit/log"}, want: []string{m, m + "/kit/log", m + "/runners"}},
		"test data":                      {folders: []string{"hosts/testdata/deep"}, want: []string{m, m + "/hosts"}},
		"manifests for servers":          {folders: []string{"deploy/crds"}, want: []string{m, m + "/hosts", m + "/runners", m + "/test/kube"}},
		"a page":                         {folders: []string{"docs/guides"}, want: []string{m, m + "/hack/site", m + "/test/guides"}},
		"a file at the root":             {folders: []string{"."}, want: []string{m, m + "/hack/site"}},
		"a folder that no package is in": {folders: []string{"old/gone"}, want: []string{m}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			folders := map[string]bool{}
			for _, folder := range tc.folders {
				folders[folder] = true
			}

			if got := affectedPackages(m, folders, maps.Clone(tests)); !slices.Equal(got, tc.want) {
				t.Errorf("affected = %v, want %v", got, tc.want)
			}
		})
	}
}
