// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/sweep"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/spelling"
)

func TestInvalidSweepConfigurations(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		args   []string
		want   []string
	}{
		"nothing": {want: []string{"identity_key_file", "clients.hyperfleet_api.base_url"}},
		"an unknown field": {
			config: "identity_key_file: /k\ndeletes: true\n", want: []string{":2:1", "deletes", "delete"},
		},
		"a share above 1":      {config: "max_share: 2\n", want: []string{"max_share", ":1:"}},
		"a limit of 0":         {args: []string{"--max-deletions=0"}, want: []string{"max_deletions"}},
		"a short interval":     {config: "interval: 10ms\n", want: []string{"interval", "1s"}},
		"no lease":             {config: "lease: ''\n", want: []string{"lease"}},
		"an unknown log level": {config: "log: {level: loud}\n", want: []string{"log.level"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{}, tc.args...)
			if tc.config != "" {
				args = append(args, "--config", writeFile(t, "file", tc.config))
			}

			_, err := spelling.Execute(sweep.New(), args...)
			if code := cli.ExitCode(err); err == nil || code != 2 {
				t.Fatalf("exit code %d, %v", code, err)
			}

			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not contain %q", err, want)
				}
			}
		})
	}
}

func TestSweepMissingFiles(t *testing.T) {
	key := writeFile(t, "file", strings.Repeat("k", 40))

	for name, args := range map[string][]string{
		"no key":      {"--identity-key-file=/nowhere"},
		"a short key": {"--identity-key-file=" + writeFile(t, "file", "short")},
		"no cluster":  {"--identity-key-file=" + key, "--kube-config-path=/nowhere"},
	} {
		_, err := spelling.Execute(sweep.New(), append(args, "--clients-hyperfleet-api-base-url=http://127.0.0.1:1")...)
		if code := cli.ExitCode(err); err == nil || code != 1 {
			t.Errorf("%s: exit code %d, %v", name, code, err)
		}
	}
}
