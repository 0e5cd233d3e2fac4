// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
)

const dockerConfig = "/etc/docker/daemon.json"

// Mirrors go before the image's own, all else of Docker's configuration stays, and what can't
// be read is left alone: the job runs in any case.
func TestDockerAsksMirrors(t *testing.T) {
	t.Parallel()

	mirrors := []string{"http://10.20.0.5:5000", "https://mirror.example.com"}

	for name, tc := range map[string]struct{ before, after, says string }{
		"no configuration": {"", `{"registry-mirrors":["http://10.20.0.5:5000","https://mirror.example.com"]}`, ""},
		"of an image": {
			`{"mtu": 1450, "registry-mirrors": ["https://old.example.com", "https://mirror.example.com"]}`,
			`{"mtu":1450,"registry-mirrors":["http://10.20.0.5:5000","https://mirror.example.com","https://old.example.com"]}`, "",
		},
		"broken":       {`{"mtu": `, `{"mtu": `, "not valid JSON"},
		"of a mistake": {`{"registry-mirrors": "a"}`, `{"registry-mirrors": "a"}`, "registry-mirrors is not a list of strings"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.cfg.Cache = &api.Cache{RegistryMirrors: mirrors}

			if tc.before != "" {
				m.write(t, dockerConfig, tc.before)
			}

			m.write(t, "/opt/actions-runner/run.sh", "echo 'Running job: a'; echo 'Job a completed with result: Succeeded'")

			if got := m.end(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
				t.Errorf("ended with %+v", got)
			}

			after := m.read(t, dockerConfig)
			if text, err := yaml.YAMLToJSON([]byte(after)); tc.says == "" && err == nil {
				after = string(text)
			}

			if diff := cmp.Diff(tc.after, after); diff != "" {
				t.Errorf("Docker's configuration (-want +got):\n%s", diff)
			}

			if !strings.Contains(m.log.String(), tc.says) {
				t.Errorf("the log does not say %q:\n%s", tc.says, m.log.String())
			}
		})
	}
}

// A Docker that runs already is told to read its mirrors again.
func TestRunningDockerTakesMirrorsOver(t *testing.T) {
	t.Parallel()

	// A shell cannot trap a signal that is ignored where it starts, as nohup has it; one that is
	// handled here is not ignored there.
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangUp) })

	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)

	docker := exec.CommandContext(ctx, "sh", "-c", "trap 'echo reloaded; exit' HUP; echo up; while :; do sleep 0.05; done")

	out, err := docker.StdoutPipe()
	if err == nil {
		err = docker.Start()
	}

	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = docker.Process.Kill(); _ = docker.Wait() })

	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "up" {
		t.Fatal("the stand-in did not start")
	}

	m := newMachine(t)
	m.cfg.Cache = &api.Cache{RegistryMirrors: []string{"http://10.20.0.5:5000"}}
	m.write(t, "/run/docker.pid", strconv.Itoa(docker.Process.Pid))
	m.write(t, "/opt/actions-runner/run.sh", "echo 'Running job: a'; echo 'Job a completed with result: Succeeded'")
	m.end(t, m.start(t, t.Context()))

	if !lines.Scan() || lines.Text() != "reloaded" {
		t.Errorf("Docker was not told:\n%s", m.log.String())
	}
}

func TestBadCachesAreRefused(t *testing.T) {
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
