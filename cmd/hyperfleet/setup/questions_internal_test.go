// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// answerQuestions answers the questions of one part with lines, and returns what the user sees. A check accepts the
// answers if isRight returns true.
func answerQuestions(t *testing.T, o *options, part, lines string, isRight func() bool) (string, error) {
	t.Helper()

	var out strings.Builder

	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())

	missing := o.hypervisorQuestions
	if part == "GitHub" {
		missing = o.platformQuestions
	}

	err := o.askAndCheck(cmd, &prompter{in: strings.NewReader(lines), out: &out, isTerminal: true}, part, missing,
		func(context.Context) (string, error) {
			o.normalizeScope()

			if !isRight() {
				return "", errors.New("rejected")
			}

			return "accepted", nil
		})

	return out.String(), err
}

// TestWrongAnswersAreAskedAgain checks that a user corrects only the wrong answers, and that an empty answer repeats the
// former one.
func TestWrongAnswersAreAskedAgain(t *testing.T) {
	t.Parallel()

	o := &options{}

	out, err := answerQuestions(t, o, "hypervisor", "http://pve.example.com\npve.example.com\nroot@pam\nroot@pam!wrong\nsecret\n\nhyperfleet@pve!operator\n\n\n",
		func() bool {
			if o.Template == "" {
				o.Template = "hyperfleet-runner"
			}

			return o.TokenID == "hyperfleet@pve!operator"
		})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	if o.Endpoint != "pve.example.com" || o.TokenSecret != "secret" || o.Template != "hyperfleet-runner" {
		t.Errorf("answers = %s, %s, %s; want those before", o.Endpoint, o.TokenSecret, o.Template)
	}

	for _, want := range []string{"hypervisor: rejected", "[pve.example.com]: ", "[root@pam!wrong]: ", "must be a host, or an https URL", "root@pam is not the ID of a token", "Secret of the token [as before]: ", "[hyperfleet-runner]: "} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}

	if strings.Contains(out, "[secret]") {
		t.Errorf("the output shows the secret:\n%s", out)
	}
}

// TestWrongScopeIsAskedAgain does the same with an organization that becomes a repository.
func TestWrongScopeIsAskedAgain(t *testing.T) {
	t.Parallel()

	o := &options{}

	out, err := answerQuestions(t, o, "GitHub", "acme\ntoken\nacme/app\n\n", func() bool { return o.Repository == "acme/app" && o.GitHubToken == "token" })
	if err != nil || o.Organization != "" {
		t.Errorf("organization %q, error %v\n%s", o.Organization, err, out)
	}
}

// TestRejectedFilesEndTheCommand checks that the command asks no question that cannot correct the error.
func TestRejectedFilesEndTheCommand(t *testing.T) {
	t.Parallel()

	for name, o := range map[string]*options{
		"GitHub":     {answers: answers{Organization: "acme", AppID: "1", AppKey: "key", InstallationID: "2"}},
		"hypervisor": {answers: answers{Endpoint: "qemu+ssh://host-1.example.com/system"}},
	} {
		if out, err := answerQuestions(t, o, name, "", func() bool { return false }); err == nil || err.Error() != "rejected" {
			t.Errorf("%s: error %v, want that of the check\n%s", name, err, out)
		}
	}
}

func TestInputThatEnds(t *testing.T) {
	t.Parallel()

	if _, err := answerQuestions(t, &options{}, "hypervisor", "pve.example.com\n", nil); !errors.Is(err, errInputEnded) {
		t.Errorf("error %v, want %v", err, errInputEnded)
	}
}

// TestPastedAnswers checks that answers may be copied from the address bar of a browser.
func TestPastedAnswers(t *testing.T) {
	t.Parallel()

	const want = "https://pve.example.com:8006/api2/json"

	for text, want := range map[string]string{
		"pve.example.com": want, "pve.example.com:8006": want, "https://pve.example.com:8006/#v1:0:18:4:::::::": want,
		"https://pve.example.com:8006/": want, want: want, "2001:db8::1": "https://[2001:db8::1]:8006/api2/json",
		"https://proxy.example.com/pve/api2/json": "https://proxy.example.com:8006/pve/api2/json",
	} {
		if got, err := normalizeEndpoint(text); got != want || err != nil {
			t.Errorf("normalizeEndpoint(%q) = %q, %v; want %q", text, got, err, want)
		}
	}

	for text, want := range map[string][2]string{
		"acme": {"acme", ""}, "acme/app": {"", "acme/app"}, "https://github.com/acme": {"acme", ""},
		"https://github.com/acme/": {"acme", ""}, "https://github.com/acme/app.git": {"", "acme/app"},
		// Otherwise the token for another server would be sent to github.com.
		"https://other.example.com/acme": {"https://other.example.com/acme", ""},
	} {
		o := &options{answers: answers{Organization: text}}
		o.normalizeScope()

		if o.Organization != want[0] || o.Repository != want[1] {
			t.Errorf("%q: organization %q, repository %q; want %q", text, o.Organization, o.Repository, want)
		}
	}

	o := &options{answers: answers{Organization: "https://ghe.example.com/acme", GitHubURL: "https://ghe.example.com/api/v3"}}
	o.normalizeScope()

	if o.Organization != "acme" {
		t.Errorf("organization %q of the server of --github-url", o.Organization)
	}
}
