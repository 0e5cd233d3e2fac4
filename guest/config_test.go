// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
)

const minimal = `"method":"runner-token","platform":"github-actions","runner_name":"ci-1","jit_config":"` + jitBlob + `"`

const (
	callbackMinimal = `"method":"callback","platform":"github-actions","runner_name":"ci-1"`
	gitlabMinimal   = `"method":"runner-token","platform":"gitlab-ci","runner_name":"a","runner_token":"b","registration_url":"https://gitlab.example"`
	genericMinimal  = `"method":"runner-token","platform":"generic","runner_name":"a","job_id":"b","command":["c"]`
)

// listBadConfigs returns invalid configurations, and a part of the error for each.
func listBadConfigs() map[string]struct{ text, want string } {
	return map[string]struct{ text, want string }{
		"empty":            {"", "the file is empty"},
		"not JSON":         {"method: x", "not valid JSON at byte 1"},
		"cut off":          {`{` + minimal, "not valid JSON"},
		"a list":           {`[]`, "wrong type"},
		"two objects":      {`{` + minimal + `}{}`, "text follows"},
		"unknown field":    {`{` + minimal + `,"jitconfig":"x"}`, `unknown field "jitconfig"`},
		"wrong type":       {`{` + minimal + `,"labels":"` + runnerToken + `"}`, `field "labels" has the wrong type`},
		"bad duration":     {`{` + minimal + `,"idle_timeout":"` + runnerToken + `"}`, "30m0s"},
		"bad time":         {`{` + minimal + `,"expires_at":"` + runnerToken + `"}`, "expires_at"},
		"negative timeout": {`{` + minimal + `,"job_timeout":"-1s"}`, "must not be negative"},
		"too large":        {`{` + minimal + `,"labels":["` + strings.Repeat("x", guest.MaxConfigBytes) + `"]}`, "more than 262144 bytes"},
		"no method":        {`{}`, "method is missing"},
		"other method":     {`{"method":"magic"}`, `does not support method "magic"`},
		"callback beside a credential": {
			`{` + minimal + `,"callback":{"url":"https://x.example","code":"` + claimCode + `"}}`, "callback is not used by method runner-token",
		},
		"callback without URL":    {`{` + callbackMinimal + `}`, "callback is missing"},
		"callback without a code": {`{` + callbackMinimal + `,"callback":{"url":"https://x.example"}}`, "callback.code is missing"},
		"callback in the clear": {
			`{` + callbackMinimal + `,"callback":{"url":"http://x.example","code":"` + claimCode + `"}}`, "callback.url must begin with https://",
		},
		"callback with a credential": {
			`{` + callbackMinimal + `,"jit_config":"` + jitBlob + `","callback":{"url":"https://x.example","code":"x"}}`,
			"a credential is not used by method callback",
		},
		"no platform":            {`{"method":"runner-token"}`, "platform is missing"},
		"other platform":         {`{"method":"runner-token","platform":"jenkins"}`, `does not support platform "jenkins": use github-actions, gitlab-ci, buildkite, forgejo-actions, gitea-actions, generic`},
		"no name":                {`{"method":"runner-token","platform":"github-actions"}`, "runner_name is missing"},
		"no credential":          {`{"method":"runner-token","platform":"github-actions","runner_name":"a"}`, "the credential is missing"},
		"token without URL":      {`{"method":"runner-token","platform":"github-actions","runner_name":"a","runner_token":"b"}`, "registration_url is missing"},
		"bad URL":                {`{` + minimal + `,"registration_url":"github.com/o"}`, "registration_url is not"},
		"relative path":          {`{` + minimal + `,"runner":{"install_path":"opt"}}`, "runner.install_path"},
		"root as work directory": {`{` + minimal + `,"runner":{"work_dir":"/tmp/.."}}`, "runner.work_dir"},
		"script outside":         {`{` + minimal + `,"runner":{"run_script":"../../bin/sh"}}`, "runner.run_script"},
		"bad checksum":           {`{` + minimal + `,"runner":{"download_sha256":"abc"}}`, "64 hexadecimal digits"},
		"GitHub with a command":  {`{` + minimal + `,"command":["x"]}`, "command is not used by platform github-actions"},
		"GitHub with a program":  {`{` + minimal + `,"runner":{"program":"/x"}}`, "runner.program is not used by platform"},
		"relative program":       {`{` + gitlabMinimal + `,"runner":{"program":"gitlab-runner"}}`, "runner.program"},
		"GitLab without a token": {`{"method":"runner-token","platform":"gitlab-ci","runner_name":"a"}`, "runner_token is not set"},
		"GitLab without a URL": {
			`{"method":"runner-token","platform":"gitlab-ci","runner_name":"a","runner_token":"b"}`, "registration_url is missing: it is the URL",
		},
		"GitLab with a JIT config":  {`{` + gitlabMinimal + `,"jit_config":"` + jitBlob + `"}`, "jit_config is not used by platform gitlab-ci"},
		"GitLab with a download":    {`{` + gitlabMinimal + `,"runner":{"download_url":"https://x.example"}}`, "runner.download_url is not used by platform"},
		"Buildkite without a token": {`{"method":"runner-token","platform":"buildkite","runner_name":"a","job_id":"b"}`, "runner_token is not set"},
		"Buildkite without a job": {
			`{"method":"runner-token","platform":"buildkite","runner_name":"a","runner_token":"b"}`, "job_id is missing: an agent runs one job",
		},
		"Buildkite with env":        {`{"method":"runner-token","platform":"buildkite","runner_name":"a","runner_token":"b","job_id":"c","env":{"A":"b"}}`, "env is not used by platform"},
		"command missing":           {`{"method":"runner-token","platform":"generic","runner_name":"a","job_id":"b"}`, "command is missing"},
		"empty command":             {`{"method":"runner-token","platform":"generic","runner_name":"a","job_id":"b","command":[""]}`, "command is missing"},
		"command without a job":     {`{"method":"runner-token","platform":"generic","runner_name":"a","command":["b"]}`, "job_id is missing"},
		"command with a zero byte":  {`{` + genericMinimal + `,"command":["a","b\u0000"]}`, "command[1] contains a zero byte"},
		"command with a bad name":   {`{` + genericMinimal + `,"env":{"A-B":"x"}}`, `env "A-B" is not the name of a variable`},
		"command with a bad value":  {`{` + genericMinimal + `,"env":{"A":"x\u0000"}}`, "env A contains a zero byte"},
		"command with a credential": {`{` + genericMinimal + `,"runner_token":"` + runnerToken + `"}`, "runner_token is not used by platform generic"},
		"report in the clear":       {`{` + minimal + `,"report":{"url":"http://hf.example/x","token":"` + reportToken + `"}}`, "https://"},
		"report without a token":    {`{` + minimal + `,"report":{"url":"https://hf.example/x","token":""}}`, "report.token"},
	}
}

func TestBadConfigEndsTheMachine(t *testing.T) {
	t.Parallel()

	for name, tc := range listBadConfigs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.write(t, api.ConfigPath, tc.text)

			got := m.waitForEnd(t, m.startWithoutConfig(t, t.Context()))
			if got.Phase != api.PhaseFailed || got.Reason != api.ReasonConfigInvalid || !strings.Contains(got.Message, tc.want) {
				t.Errorf("ended with %s %s: %s; want %q in it", got.Phase, got.Reason, got.Message, tc.want)
			}
		})
	}

	t.Run("missing", func(t *testing.T) {
		t.Parallel()

		m := newMachine(t)
		result := m.startWithoutConfig(t, t.Context())
		m.waitForMedium(t)

		if got := m.waitForEnd(t, result); got.Reason != api.ReasonConfigInvalid || !strings.Contains(got.Message, noConfig) {
			t.Errorf("%+v", got)
		}
	})

	t.Run("bad CA bundle", func(t *testing.T) {
		t.Parallel()

		m := newMachine(t)
		m.cfg.Report = &api.ReportTo{URL: "https://hf.example", Token: reportToken, CABundle: "no PEM"}

		if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != api.ReasonConfigInvalid || !strings.Contains(got.Message, "ca_bundle") {
			t.Errorf("%+v", got)
		}
	})
}

func TestParseConfigFillsInDefaults(t *testing.T) {
	t.Parallel()

	got, err := guest.ParseConfig([]byte(`{` + minimal + `}`))
	if err != nil {
		t.Fatal(err)
	}

	want := api.Runner{InstallPath: "/opt/actions-runner", WorkDir: "/tmp/runner-work", ConfigScript: configScript, RunScript: runnerScript}
	if got.Runner != want {
		t.Errorf("runner %+v", got.Runner)
	}

	for text, want := range map[string]string{
		gitlabMinimal:  gitlabProgram,
		genericMinimal: "",
		`"method":"runner-token","platform":"buildkite","runner_name":"a","runner_token":"b","job_id":"c"`: buildkiteProgram,
	} {
		got, err := guest.ParseConfig([]byte(`{` + text + `}`))
		if err != nil {
			t.Fatal(err)
		}

		if got.Runner.Program != want {
			t.Errorf("%s has program %q", got.Platform, got.Runner.Program)
		}
	}
}

// FuzzParseConfig checks that accepted configurations are usable, and that no error contains a credential.
func FuzzParseConfig(f *testing.F) {
	for _, tc := range listBadConfigs() {
		if len(tc.text) < 1000 {
			f.Add([]byte(tc.text))
		}
	}

	f.Add([]byte(`{` + gitlabMinimal + `}`))
	f.Add([]byte(`{` + genericMinimal + `,"env":{"A":"b"}}`))
	f.Add([]byte(`{` + minimal + `,"expires_at":"2026-01-02T03:04:05Z","idle_timeout":"5m","runner":{"install_path":"/a"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := guest.ParseConfig(data)
		if err != nil {
			if strings.Contains(err.Error(), jitBlob) {
				t.Errorf("the error quotes a credential: %v", err)
			}

			return
		}

		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := guest.ParseConfig(again); err != nil && len(again) <= guest.MaxConfigBytes {
			t.Errorf("accepted, but rejected after it was written again: %v\n%s", err, again)
		}

		for _, p := range []string{c.Runner.InstallPath, c.Runner.WorkDir} {
			if !strings.HasPrefix(p, "/") || p == "/" {
				t.Errorf("path %q", p)
			}
		}
	})
}

func TestConfigThatIsADirectory(t *testing.T) {
	t.Parallel()

	m := newMachine(t)
	m.write(t, api.ConfigPath+"/a-directory", "x")

	result := m.startWithoutConfig(t, t.Context())
	m.waitForMedium(t)

	select {
	case got := <-result:
		if got.Reason != api.ReasonConfigInvalid {
			t.Errorf("%+v", got)
		}
	case <-t.Context().Done():
	}

	if _, err := os.Stat(m.path(api.ConfigPath + "/a-directory")); err != nil {
		t.Error("a directory in the configuration's place was emptied")
	}
}
