// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// queueMissedWebhooks queues jobs whose webhooks the receiver rejects.
func queueMissedWebhooks(t *testing.T, server *githubtest.Server, hooks *githubtest.Receiver, jobs int) {
	t.Helper()

	hooks.SetStatus(http.StatusInternalServerError)

	before := server.State().Webhooks.Failed
	server.Queue(control.JobSpec{Labels: []string{"x"}, Count: jobs})
	server.WaitUntil("the webhooks failed", func(s control.State) bool { return s.Webhooks.Failed == before+jobs })
	hooks.SetStatus(http.StatusAccepted)
}

func TestRedeliver(t *testing.T) {
	t.Parallel()

	const good, bad = 3, 4

	private, text := newKey(t)
	rights := map[string]string{"organization_self_hosted_runners": "write", "administration": "write"}
	app := func(s *githubtest.Server) *github.Settings {
		config := newOrganizationConfig(s)
		config.Token, config.App = "", &github.App{AppID: strconv.Itoa(appID), PrivateKey: text, InstallationID: authenticateAsInstallation}

		return config
	}
	both := map[string]string{"organization_hooks": "write", "organization_self_hosted_runners": "write"}

	for name, test := range map[string]struct {
		options sim.Options
		owner   string // of the hook
		config  func(*githubtest.Server) *github.Settings
	}{
		"the App's webhook":          {newAppOptions(&private.PublicKey, rights), "app", app},
		"an organization's":          {sim.Options{}, githubtest.Org, newOrganizationConfig},
		"a repository's":             {sim.Options{}, githubtest.Repo, newRepositoryConfig},
		"an organization's, for one": {sim.Options{}, githubtest.Org, newRepositoryConfig},
		"a user's repository's": {
			sim.Options{Repos: []sim.Repo{{FullName: githubtest.Repo, UserOwned: true}}}, githubtest.Repo, newRepositoryConfig,
		},
		"an organization's, listed by an App without a webhook URL": {newAppOptions(&private.PublicKey, both), githubtest.Org, app},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			hooks := githubtest.NewReceiver(t)
			test.options.Hooks = []sim.Hook{
				{ID: 1, Owner: test.owner, URL: hooks.URL + "/elsewhere"}, {ID: 2, Owner: test.owner, URL: hooks.URL + "/webhooks/github"},
			}

			if test.owner == "app" { // an App has one webhook
				test.options.Hooks = test.options.Hooks[1:]
			}

			server := githubtest.New(t, test.options)
			start := time.Now().Add(-time.Minute)

			server.Queue(control.JobSpec{Labels: []string{"x"}, Count: good})
			server.WaitUntil("the first ones came", func(s control.State) bool { return s.Webhooks.Delivered == good*len(test.options.Hooks) })

			hooks.SetStatus(http.StatusInternalServerError)
			server.Queue(control.JobSpec{Labels: []string{"x"}, Count: bad})
			server.WaitUntil("the others failed", func(s control.State) bool { return s.Webhooks.Failed == bad*len(test.options.Hooks) })
			hooks.SetStatus(http.StatusAccepted)

			seen := len(hooks.Webhooks())
			p := asInterface[workload.Redeliverer](t, newTestProvider(t, test.config(server)))
			target := hooks.URL + "/webhooks/github/"

			if count, err := p.Redeliver(t.Context(), target, time.Now().Add(time.Minute)); err != nil || count != 0 {
				t.Errorf("Redeliver of what failed in the future: %d, %v", count, err)
			}

			if count, err := p.Redeliver(t.Context(), target, start); err != nil || count != bad {
				t.Fatalf("Redeliver: %d, %v", count, err)
			}

			server.WaitUntil("they came", func(s control.State) bool {
				return s.Webhooks.Delivered == good*len(test.options.Hooks)+bad
			})

			guids := map[string]bool{}
			for _, got := range hooks.Webhooks()[seen:] {
				guids[got.Header.Get(github.HeaderDelivery)] = true
			}

			if len(guids) != bad {
				t.Errorf("%d of %d webhooks were redelivered", len(guids), bad)
			}

			if count, err := asInterface[workload.Redeliverer](t, newTestProvider(t, test.config(server))).Redeliver(t.Context(), target, start); err != nil || count != 0 {
				t.Errorf("Redeliver of what came since: %d, %v", count, err)
			}
		})
	}
}

// Many failed deliveries are spread over GitHub's rate limits, and none is omitted.
func TestRedeliverInParts(t *testing.T) {
	t.Parallel()

	const many = 260

	clk := clocktesting.NewFakeClock(time.Now())
	hooks := githubtest.NewReceiver(t)
	server := githubtest.New(t, sim.Options{
		Webhook: control.WebhookTarget{URL: hooks.URL}, Clock: clk, SecondaryPoints: 900,
	})
	queueMissedWebhooks(t, server, hooks, many)

	p, since := asInterface[workload.Redeliverer](t, newProviderWithClock(t, newOrganizationConfig(server), clk)), clk.Now().Add(-time.Hour)

	var counts []int

	for sum := 0; sum < many && len(counts) < 10; clk.Step(time.Minute) {
		count, err := p.Redeliver(t.Context(), hooks.URL, since)
		if err != nil && !workload.Is(err, workload.RateLimited) {
			t.Fatalf("after %v: %v", counts, err)
		}

		server.WaitUntil("they came", func(s control.State) bool { return s.Webhooks.Pending == 0 })

		sum += count
		counts = append(counts, count)
		since = clk.Now() // unfinished deliveries are still checked
	}

	if len(counts) != 3 {
		t.Errorf("requested %v", counts)
	}

	if state := server.State(); state.Webhooks.Delivered != many {
		t.Errorf("%d of %d webhooks were delivered", state.Webhooks.Delivered, many)
	}
}

// Providers with the same credential do not request the same redelivery twice.
func TestRedeliverOncePerCredential(t *testing.T) {
	t.Parallel()

	hooks := githubtest.NewReceiver(t)
	server := githubtest.New(t, sim.Options{Webhook: control.WebhookTarget{URL: hooks.URL}})
	queueMissedWebhooks(t, server, hooks, 3)
	hooks.SetStatus(http.StatusInternalServerError)

	sum := 0

	platform := github.NewPlatform()
	for _, group := range []string{"", "fast", "slow"} {
		count, err := asInterface[workload.Redeliverer](t, openTestProvider(t, platform, server.URL, githubtest.PAT, group)).
			Redeliver(t.Context(), hooks.URL, time.Now().Add(-time.Hour))
		if err != nil {
			t.Fatal(err)
		}

		sum += count
	}

	if sum != 3 {
		t.Errorf("three webhooks were requested %d times", sum)
	}
}

func TestRedeliverErrors(t *testing.T) {
	t.Parallel()

	const weak = "ghp_withouthooks00000000000000000000000"

	hooks := githubtest.NewReceiver(t)
	server := githubtest.New(t, sim.Options{
		Enterprise: "corp", Webhook: control.WebhookTarget{URL: hooks.URL},
		PATs: []sim.PAT{
			{Token: githubtest.PAT, Scopes: []string{"repo", "admin:org", "admin:org_hook", "manage_runners:enterprise"}},
			{Token: weak, Scopes: []string{"public_repo", "admin:org"}},
			{Token: "github_pat_mayread00000000000000000000", Permissions: map[string]string{"organization_hooks": "read"}},
		},
	})
	queueMissedWebhooks(t, server, hooks, 1)

	for name, test := range map[string]struct {
		edit    func(*github.Settings)
		target  string
		reason  string
		message string
	}{
		"no webhook with this URL": {
			func(*github.Settings) {}, "https://fleet.example.com/webhooks/github", github.ReasonHook,
			"find the webhook of organization octo-org to https://fleet.example.com/webhooks/github",
		},
		"an organization's without the permission": {
			func(c *github.Settings) { c.Token = weak }, hooks.URL, github.ReasonPermission,
			"the organization permission Webhooks: write",
		},
		"read permission is not sufficient": {
			func(c *github.Settings) { c.Token = "github_pat_mayread00000000000000000000" }, hooks.URL, github.ReasonPermission,
			"the organization permission Webhooks: write",
		},
		"a repository's without the permission": {
			func(c *github.Settings) { c.Token, c.Owner, c.Repository = weak, "octo-org", "octo-repo" }, hooks.URL, github.ReasonPermission,
			"the repository permission Webhooks: write",
		},
		"an enterprise's": {
			func(c *github.Settings) { c.Organization, c.Enterprise = "", "corp" }, hooks.URL, github.ReasonHook,
			"no webhooks of enterprise corp",
		},
		"a revoked token": {
			func(c *github.Settings) { c.Token = "ghp_revoked" }, hooks.URL, github.ReasonCredentials, "wrong, expired or revoked",
		},
	} {
		config := newOrganizationConfig(server)
		test.edit(config)

		count, err := asInterface[workload.Redeliverer](t, newTestProvider(t, config)).Redeliver(t.Context(), test.target, time.Now().Add(-time.Hour))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkError(t, err, workload.Rejected, test.reason, test.message)

			if count != 0 {
				t.Errorf("%d redeliveries were requested", count)
			}
		})
	}
}

// The delivery list of an App contains all its installations. A provider only requests redeliveries
// for its own installation.
func TestRedeliverOnlyOwnInstallation(t *testing.T) {
	t.Parallel()

	private, text := newKey(t)
	hooks := githubtest.NewReceiver(t)
	options := newAppOptions(&private.PublicKey, map[string]string{"organization_self_hosted_runners": "write"})
	options.App.Installations = append(options.App.Installations, sim.Installation{
		ID: authenticateAsInstallation + 1, Account: "other", Permissions: options.App.Installations[0].Permissions,
	})
	options.Repos = []sim.Repo{{FullName: githubtest.Repo, Private: true}, {FullName: "other/app", Private: true}}
	options.Webhook = control.WebhookTarget{URL: hooks.URL}
	server := githubtest.New(t, options)

	queueMissedWebhooks(t, server, hooks, 2)
	hooks.SetStatus(http.StatusInternalServerError)
	server.Queue(control.JobSpec{Repo: "other/app", Labels: []string{"x"}, Count: 3})
	server.WaitUntil("they failed", func(s control.State) bool { return s.Webhooks.Failed == 5 })

	got := map[string]int{}

	for owner, id := range map[string]int64{githubtest.Org: authenticateAsInstallation, "other": authenticateAsInstallation + 1} {
		config := &github.Settings{
			Organization: owner, APIURL: server.URL,
			App: &github.App{AppID: clientID, PrivateKey: text, InstallationID: id},
		}

		count, err := asInterface[workload.Redeliverer](t, newTestProvider(t, config)).Redeliver(t.Context(), strings.ToUpper(hooks.URL[:4])+hooks.URL[4:],
			time.Now().Add(-time.Hour))
		if err != nil {
			t.Fatal(err)
		}

		got[owner] = count
	}

	if diff := cmp.Diff(map[string]int{githubtest.Org: 2, "other": 3}, got); diff != "" {
		t.Errorf("requested (-want +got):\n%s", diff)
	}
}

// A delivery that always fails is not requested at every call.
func TestRedeliverBacksOff(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Now())
	hooks := githubtest.NewReceiver(t)
	server := githubtest.New(t, sim.Options{Webhook: control.WebhookTarget{URL: hooks.URL}, Clock: clk})
	queueMissedWebhooks(t, server, hooks, 1)
	hooks.SetStatus(http.StatusRequestEntityTooLarge)

	p := asInterface[workload.Redeliverer](t, newProviderWithClock(t, newOrganizationConfig(server), clk))

	var minutes []int

	for minute := 0; minute <= 180; minute += 10 {
		count, err := p.Redeliver(t.Context(), hooks.URL, clk.Now().Add(-24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}

		if count > 0 {
			minutes = append(minutes, minute)
		}

		server.WaitUntil("it failed again", func(s control.State) bool { return s.Webhooks.Failed == 1+len(minutes) })
		clk.Step(10 * time.Minute)
	}

	if diff := cmp.Diff([]int{0, 10, 20, 40, 80, 160}, minutes); diff != "" {
		t.Errorf("requested after minutes (-want +got):\n%s", diff)
	}
}
