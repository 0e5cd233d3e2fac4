// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
)

// Configured mirrors come before the image's own. The rest of Docker's configuration stays unchanged. If the
// configuration is invalid, it is not changed and the job still runs.
func TestDockerUsesMirrors(t *testing.T) {
	t.Parallel()

	mirrors := []string{"http://10.20.0.5:5000", "https://mirror.example.com"}

	for name, tc := range map[string]struct{ before, after, wantLog string }{
		"no configuration": {"", `{"registry-mirrors":["http://10.20.0.5:5000","https://mirror.example.com"]}`, ""},
		"of an image": {
			`{"mtu": 1450, "registry-mirrors": ["https://old.example.com", "https://mirror.example.com"]}`,
			`{"mtu":1450,"registry-mirrors":["http://10.20.0.5:5000","https://mirror.example.com","https://old.example.com"]}`, "",
		},
		"with a byte order mark": {"\ufeff{\"mtu\": 1}", `{"mtu":1,"registry-mirrors":["http://10.20.0.5:5000","https://mirror.example.com"]}`, ""},
		"broken":                 {`{"mtu": `, `{"mtu": `, "not valid JSON"},
		"of a mistake":           {`{"registry-mirrors": "a"}`, `{"registry-mirrors": "a"}`, "registry-mirrors is not a list of strings"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.cfg.Cache = &api.Cache{RegistryMirrors: mirrors}

			if tc.before != "" {
				m.write(t, guest.DockerConfig, tc.before)
			}

			m.write(t, runScript, printListening+printRunning+printCompleted)

			if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
				t.Errorf("ended with %+v", got)
			}

			after := m.read(t, guest.DockerConfig)
			if text, err := yaml.YAMLToJSON([]byte(after)); tc.wantLog == "" && err == nil {
				after = string(text)
			}

			if diff := cmp.Diff(tc.after, after); diff != "" {
				t.Errorf("Docker's configuration (-want +got):\n%s", diff)
			}

			if !strings.Contains(m.log.String(), tc.wantLog) {
				t.Errorf("the log does not contain %q:\n%s", tc.wantLog, m.log.String())
			}
		})
	}
}

func TestBadCachesAreRejected(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		`"cache":{"registry_mirrors":["mirror"]}`: "cache.registry_mirrors contains a value that is not an http or https URL",
		`"cache":{"actions_url":"ftp://a"}`:       "cache.actions_url is not an http or https URL",
		`"environment":{"a b":"c"}`:               `environment "a b" is not the name of a variable`,
		`"environment":{"a":"b\u0000"}`:           "environment a contains a zero byte",
	} {
		_, err := guest.ParseConfig([]byte(
			`{"method":"runner-token","platform":"github-actions","runner_name":"r","jit_config":"j",` + text + `}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
