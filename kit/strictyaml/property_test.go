// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
)

// configSources are the sources in the order of precedence.
var configSources = []string{"default", "file", "env", "flag"}

// precedenceCase is a key with its names and a distinct value for each source.
type precedenceCase struct {
	key, env, flag string
	values         [4]string
	getValue       func(settings) string
}

func listPrecedenceCases() []precedenceCase {
	return []precedenceCase{
		{
			"ownerUID", "HYPERFLEET_OWNER_UID", "owner-uid", [4]string{"", "f", "e", "l"},
			func(s settings) string { return s.OwnerUID },
		},
		{
			"log.level", "HYPERFLEET_LOG_LEVEL", "log-level", [4]string{"INFO", "DEBUG", "WARN", "ERROR"},
			func(s settings) string { return s.Log.Level },
		},
		{
			"leaderElection.retryPeriod", "HYPERFLEET_LEADER_ELECTION_RETRY_PERIOD", "leader-election-retry-period",
			[4]string{"2s", "1m0s", "1h0m0s", "5ms"}, func(s settings) string { return s.Leader.RetryPeriod.String() },
		},
		{
			"leaderElection.replicas", "HYPERFLEET_LEADER_ELECTION_REPLICAS", "leader-election-replicas",
			[4]string{"1", "2", "3", "4"}, func(s settings) string { return strconv.Itoa(s.Leader.Replicas) },
		},
		{
			"areas", "HYPERFLEET_AREAS", "areas", [4]string{"runners", "a,b", "c", "d,e,f"},
			func(s settings) string { return strings.Join(s.Areas, ",") },
		},
		{
			"tokenFile", "HYPERFLEET_TOKEN_FILE", "token-file", [4]string{"", "/f", "/e", "/l"},
			func(s settings) string { return s.TokenFile },
		},
	}
}

// formatYAML formats a key as a line of a file.
func formatYAML(key, value string) string {
	if key == "areas" {
		value = "[" + value + "]"
	}

	group, name, nested := strings.Cut(key, ".")
	if !nested {
		return key + ": " + value + "\n"
	}

	return group + ": {" + name + ": " + value + "}\n"
}

// checkPrecedence sets each key in the sources whose bit is set, and compares the loaded value with that of
// the source with the highest precedence.
func checkPrecedence(t *testing.T, masks []int) string {
	t.Helper()

	var (
		environ, args  []string
		nested         []string
		want, wantFrom []string
		file           strings.Builder
	)

	file.WriteString(head)

	for i, s := range listPrecedenceCases() {
		highest := 0

		for place := 1; place < len(configSources); place++ {
			if masks[i]&(1<<place) == 0 {
				continue
			}

			highest = place

			switch configSources[place] {
			case "file":
				if name, ok := strings.CutPrefix(s.key, "leaderElection."); ok {
					nested = append(nested, name+": "+s.values[place])
				} else {
					file.WriteString(formatYAML(s.key, s.values[place]))
				}
			case "env":
				environ = append(environ, s.env+"="+s.values[place])
			case "flag":
				args = append(args, "--"+s.flag+"="+s.values[place])
			}
		}

		want = append(want, s.values[highest])
		wantFrom = append(wantFrom, configSources[highest])
	}

	file.WriteString("leaderElection: {" + strings.Join(nested, ", ") + "}\n")

	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}

	all := settingsSpec(environ...)
	args = append(args, "--config", path)

	loaded, err := loadSettings(t, all, "", args...)
	if err != nil {
		return err.Error()
	}

	lines, err := runCommand(t, all, append([]string{"print", "--sources"}, args...)...)
	if err != nil {
		return err.Error()
	}

	var got, gotFrom []string

	for _, s := range listPrecedenceCases() {
		_, line, _ := strings.Cut("\n"+lines, "\n"+s.key+" = ")
		line, _, _ = strings.Cut(line, "\n")
		source := line[strings.LastIndex(line, "(")+1:]

		got, gotFrom = append(got, s.getValue(*loaded)), append(gotFrom, strings.FieldsFunc(source, func(c rune) bool { return c == ' ' || c == ')' })[0])
	}

	return cmp.Diff(want, got) + cmp.Diff(wantFrom, gotFrom)
}

// Feature: hyperfleet-operator, Property 22: Configuration Management
func TestConfigurationManagementProperty(t *testing.T) {
	t.Parallel()

	property.Check(t, "every key comes from the highest place that sets it, whatever the others do", property.Options{Runs: 200},
		prop.ForAll(func(masks []int) string { return checkPrecedence(t, masks) },
			gen.SliceOfN(len(listPrecedenceCases()), gen.IntRange(0, 15))))
}
