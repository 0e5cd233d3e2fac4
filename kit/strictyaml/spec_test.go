// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

type program struct {
	Name     string            `yaml:"name"`
	Group    *group            `yaml:"group"`
	Rate     float32           `yaml:"rate"`
	Debug    bool              `yaml:"debug"`
	Headers  map[string]string `yaml:"headers"`
	Names    []string          `yaml:"names"`
	Entities []item            `yaml:"entities"`
	Version  string            `yaml:"frameworkVersion"`
}

func loadProgram(t *testing.T, file string, environ []string, args ...string) (*program, error) {
	t.Helper()

	spec := strictyaml.Spec[program]{
		Default: program{Name: "default", Rate: 1},
		EnvFile: "HYPERFLEET_TEST_CONFIG", Aliases: map[string]string{"group.log_level": "LOG_LEVEL"},
		Environ: func() []string { return environ },
		Validate: func(p *program) error {
			var errs []error
			if p.Name == "bad" {
				errs = append(errs, strictyaml.ErrorAt("name", "is bad"))
			}

			if p.Group != nil && p.Group.Level == "bad" {
				errs = append(errs, strictyaml.ErrorAt("group.log_level", "is bad"), errors.New("so is all"))
			}

			return errors.Join(errs...)
		},
	}
	return loadSettings(t, &spec, file, args...)
}

func TestSpecPrecedenceOfSources(t *testing.T) {
	t.Parallel()

	got, err := loadProgram(t, "name: file\nrate: 2\nentities: [{key: a}]\ngroup: {every: 1s}\n", []string{
		"HYPERFLEET_NAME=env", "HYPERFLEET_GROUP_LOG_LEVEL=debug", "LOG_LEVEL=error", "HYPERFLEET_GROUP_EVERY=x",
		"HYPERFLEET_HEADERS=a=b", "HYPERFLEET_API_SERVICE_HOST=10.0.0.1", "HYPERFLEET_FRAMEWORK_VERSION=1.2",
	}, "--name", "flag", "--group-every=3s", "--debug", "--names", "a", "--names", "b")
	if err != nil {
		t.Fatal(err)
	}

	want := &program{
		Name: "flag", Group: &group{Level: "debug", Every: 3 * time.Second}, Rate: 2, Debug: true, Version: "1.2",
		Headers: map[string]string{"a": "b"}, Names: []string{"a", "b"}, Entities: []item{{Key: "a"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	var out bytes.Buffer
	if err := strictyaml.Write(&out, got); err != nil || !strings.Contains(out.String(), "every: 3s") {
		t.Errorf("printed: %s, %v", out.String(), err)
	}

	again := program{}
	if err := strictyaml.Decode("out", out.Bytes(), &again); err != nil || !cmp.Equal(want, &again, cmp.Comparer(compareItems)) {
		t.Errorf("read again: %v", err)
	}
}

func compareItems(a, b item) bool { return a.Key == b.Key }

func TestSpecErrorsNameSource(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		file    string
		environ []string
		args    []string
		want    string
	}{
		"file":       {"rate: 1\nname: bad\n", nil, nil, "c.yaml:2:7: name: is bad"},
		"variable":   {"rate: 1\n", []string{"HYPERFLEET_NAME=bad"}, nil, "env HYPERFLEET_NAME: name: is bad"},
		"alias":      {"", []string{"LOG_LEVEL=bad"}, nil, "env LOG_LEVEL: group.log_level: is bad"},
		"flag":       {"", []string{"HYPERFLEET_NAME=x"}, []string{"--name=bad"}, "flag --name: name: is bad"},
		"wrong type": {"", []string{"HYPERFLEET_RATE=x"}, nil, `env HYPERFLEET_RATE: rate: "x": want a number`},
		"no file":    {"", []string{"HYPERFLEET_TEST_CONFIG=/none/c.yaml"}, nil, "/none/c.yaml: open"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if _, err := loadProgram(t, test.file, test.environ, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error: %v, want %s", err, test.want)
			}
		})
	}
}
