// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/actions/scaleset"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

// newOfficialClient returns GitHub's own client of the scale-set API for a scope of the simulator. A call that
// the simulator rejects or does not have fails the test.
func newOfficialClient(t *testing.T, s *githubtest.Server, place, token string) *scaleset.Client {
	t.Helper()
	c, err := scaleset.NewClientWithPersonalAccessToken(scaleset.NewClientWithPersonalAccessTokenConfig{
		GitHubConfigURL: s.URL + "/" + place, PersonalAccessToken: token,
	}, scaleset.WithRetryMax(1))
	requireNoError(t, err)
	return c
}

// newOfficialScaleSet creates a set "big" with a short poll timeout for its listener.
func newOfficialScaleSet(t *testing.T, options github.Options) (*githubtest.Server, *scaleset.Client, *scaleset.RunnerScaleSet) {
	t.Helper()
	options.PollTimeout = 20 * time.Millisecond
	s := githubtest.New(t, options)
	c := newOfficialClient(t, s, githubtest.Repo, githubtest.PAT)
	set, err := c.CreateRunnerScaleSet(t.Context(), &scaleset.RunnerScaleSet{Name: "big", RunnerGroupID: 1})
	requireNoError(t, err)
	return s, c, set
}

func newListener(t *testing.T, c *scaleset.Client, set *scaleset.RunnerScaleSet) *scaleset.MessageSessionClient {
	t.Helper()
	m, err := c.MessageSessionClient(t.Context(), set.ID, "listener")
	requireNoError(t, err)
	return m
}

// getNextMessage returns the next message, which must arrive at once.
func getNextMessage(t *testing.T, m *scaleset.MessageSessionClient, last, capacity int) *scaleset.RunnerScaleSetMessage {
	t.Helper()
	got, err := m.GetMessage(t.Context(), last, capacity)
	requireNoError(t, err)
	if got == nil {
		t.Fatalf("no message after %d", last)
	}
	return got
}

// requireError fails the test unless err contains all words.
func requireError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %v: want %q in it", err, word)
		}
	}
}

func TestOfficialClientKeepsSets(t *testing.T) {
	t.Parallel()
	s := githubtest.New(t, github.Options{Groups: []github.Group{{Owner: githubtest.Org, Name: "fast"}}})
	c := newOfficialClient(t, s, githubtest.Org, githubtest.PAT)
	group, err := c.GetRunnerGroupByName(t.Context(), "fast")
	requireNoError(t, err)
	_, err = c.GetRunnerGroupByName(t.Context(), "slow")
	requireError(t, err, `no runner group found with name "slow"`)
	standard, err := c.GetRunnerGroupByName(t.Context(), scaleset.DefaultRunnerGroup)
	requireNoError(t, err)
	if !standard.IsDefault || group.IsDefault || group.Name != "fast" {
		t.Errorf("groups %+v, %+v", standard, group)
	}

	made, err := c.CreateRunnerScaleSet(t.Context(), &scaleset.RunnerScaleSet{
		Name: "big", RunnerGroupID: group.ID, Labels: []scaleset.Label{{Name: "big"}, {Name: "gpu"}},
		RunnerSetting: scaleset.RunnerSetting{DisableUpdate: true},
	})
	requireNoError(t, err)
	if made.ID == 0 || made.RunnerGroupName != "fast" || len(made.Labels) != 2 || !made.RunnerSetting.DisableUpdate ||
		made.CreatedOn.IsZero() || made.RunnerJitConfigURL == "" || made.Statistics == nil {
		t.Errorf("created %+v", made)
	}
	_, err = c.CreateRunnerScaleSet(t.Context(), &scaleset.RunnerScaleSet{Name: "BIG", RunnerGroupID: group.ID})
	requireError(t, err, "RunnerScaleSetExistsException")
	_, err = c.CreateRunnerScaleSet(t.Context(), &scaleset.RunnerScaleSet{Name: "other", RunnerGroupID: 4711})
	requireError(t, err, "RunnerGroupNotFoundException")

	byName, err := c.GetRunnerScaleSet(t.Context(), group.ID, "big")
	requireNoError(t, err)
	byID, err := c.GetRunnerScaleSetByID(t.Context(), made.ID)
	requireNoError(t, err)
	other, err := c.GetRunnerScaleSet(t.Context(), standard.ID, "big")
	requireNoError(t, err)
	if byName.ID != made.ID || byID.Name != "big" || other != nil {
		t.Errorf("by name %+v, by id %+v, in the other group %+v", byName, byID, other)
	}

	requireNoError(t, c.DeleteRunnerScaleSet(t.Context(), made.ID))
	_, err = c.GetRunnerScaleSetByID(t.Context(), made.ID)
	requireError(t, err, "RunnerScaleSetNotFoundException")
	requireError(t, c.DeleteRunnerScaleSet(t.Context(), made.ID), "RunnerScaleSetNotFoundException")
}

// An update contains only the changed fields. Actions Runner Controller renames a set and moves it to
// another group with such updates.
func TestOfficialClientUpdatesSets(t *testing.T) {
	t.Parallel()
	s := githubtest.New(t, github.Options{Groups: []github.Group{{Owner: githubtest.Org, Name: "fast"}}})
	c := newOfficialClient(t, s, githubtest.Org, githubtest.PAT)
	set, err := c.CreateRunnerScaleSet(t.Context(), &scaleset.RunnerScaleSet{Name: "big", RunnerGroupID: 1})
	requireNoError(t, err)
	group, err := c.GetRunnerGroupByName(t.Context(), "fast")
	requireNoError(t, err)

	moved, err := c.UpdateRunnerScaleSet(t.Context(), set.ID, &scaleset.RunnerScaleSet{RunnerGroupID: group.ID})
	requireNoError(t, err)
	if moved.Name != "big" || moved.RunnerGroupName != "fast" || len(moved.Labels) != 1 {
		t.Errorf("moved: %+v", moved)
	}
	renamed, err := c.UpdateRunnerScaleSet(t.Context(), set.ID, &scaleset.RunnerScaleSet{Name: "bigger"})
	requireNoError(t, err)
	if renamed.Name != "bigger" || renamed.RunnerGroupID != group.ID || renamed.Labels[0].Name != "big" {
		t.Errorf("renamed: %+v", renamed)
	}
	// The client may send back the fields that it received.
	renamed.Labels = append(renamed.Labels, scaleset.Label{Name: "gpu"})
	labelled, err := c.UpdateRunnerScaleSet(t.Context(), set.ID, renamed)
	requireNoError(t, err)
	if len(labelled.Labels) != 2 || labelled.Name != "bigger" {
		t.Errorf("labelled: %+v", labelled)
	}
	_, err = c.UpdateRunnerScaleSet(t.Context(), 4711, &scaleset.RunnerScaleSet{Name: "x"})
	requireError(t, err, "RunnerScaleSetNotFoundException")
}

func TestOfficialClientRunsAJob(t *testing.T) {
	t.Parallel()
	s, c, set := newOfficialScaleSet(t, github.Options{})
	m := newListener(t, c, set)
	if got, err := m.GetMessage(t.Context(), 0, 10); err != nil || got != nil {
		t.Fatalf("a queue without messages: %+v, %v", got, err)
	}
	job := s.Queue(control.JobSpec{Labels: []string{"big"}})[0]
	message := getNextMessage(t, m, 0, 10)
	if len(message.JobAssignedMessages) != 1 || message.Statistics.TotalAssignedJobs != 1 {
		t.Fatalf("message %+v", message)
	}
	if got := message.JobAssignedMessages[0]; got.OwnerName+"/"+got.RepositoryName != githubtest.Repo || got.JobDisplayName != job.Name ||
		!slices.Equal(got.RequestLabels, []string{"big"}) || got.QueueTime.IsZero() || got.JobID == "" {
		t.Errorf("assigned: %+v", got)
	}
	requireNoError(t, m.DeleteMessage(t.Context(), message.MessageID))

	// A runner without a set does not run jobs of a set.
	githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", createJITConfig(t, s, "other-runner", "big"))
	s.WaitUntil("a runner of no set is idle", hasIdleRunners(1))
	config, err := c.GenerateJitRunnerConfig(t.Context(), &scaleset.RunnerScaleSetJitRunnerSetting{Name: "vm", WorkFolder: "_work"}, set.ID)
	requireNoError(t, err)
	runner := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", config.EncodedJITConfig)
	if code := runner.Wait(); code != 0 {
		t.Fatalf("the runner ended with %d: %s", code, runner.Output())
	}
	var started, completed bool
	for last := message.MessageID; !completed; {
		message = getNextMessage(t, m, last, 10)
		for _, e := range message.JobStartedMessages {
			started = e.RunnerName == "vm" && e.RunnerID == config.Runner.ID
		}
		for _, e := range message.JobCompletedMessages {
			completed = e.Result == "succeeded" && e.RunnerName == "vm"
		}
		last = message.MessageID
		requireNoError(t, m.DeleteMessage(t.Context(), last))
	}
	if !started {
		t.Error("no message reported the job's start")
	}
	requireNoError(t, m.Close(t.Context()))
	requireError(t, m.Close(t.Context()), "RunnerScaleSetSessionExpiredException")
}

// Enterprise Server offers jobs, which a listener acquires.
func TestOfficialClientAcquiresJobs(t *testing.T) {
	t.Parallel()
	s, c, set := newOfficialScaleSet(t, github.Options{ScaleSets: github.ScaleSetOptions{OfferJobs: true}})
	m := newListener(t, c, set)
	s.Queue(control.JobSpec{Labels: []string{"big"}, Count: 2})
	message := getNextMessage(t, m, 0, 10)
	if len(message.JobAvailableMessages) != 2 || message.Statistics.TotalAvailableJobs != 2 || message.JobAvailableMessages[0].AcquireJobURL == "" {
		t.Fatalf("message %+v", message)
	}
	id := message.JobAvailableMessages[1].RunnerRequestID
	got, err := m.AcquireJobs(t.Context(), []int64{id, 4711})
	requireNoError(t, err)
	if !slices.Equal(got, []int64{id}) {
		t.Errorf("acquired %v, want only %d", got, id)
	}
	if again, err := m.AcquireJobs(t.Context(), []int64{id}); err != nil || len(again) != 0 {
		t.Errorf("acquired again: %v, %v", again, err)
	}
	if next := getNextMessage(t, m, message.MessageID, 10); len(next.JobAssignedMessages) != 1 || next.JobAssignedMessages[0].RunnerRequestID != id {
		t.Errorf("message after the acquisition: %+v", next)
	}
}

func TestOfficialClientKeepsRunners(t *testing.T) {
	t.Parallel()
	s, c, set := newOfficialScaleSet(t, github.Options{})
	setting := &scaleset.RunnerScaleSetJitRunnerSetting{Name: "vm", WorkFolder: "_work"}
	config, err := c.GenerateJitRunnerConfig(t.Context(), setting, set.ID)
	requireNoError(t, err)
	if config.Runner.Name != "vm" || config.Runner.RunnerScaleSetID != set.ID {
		t.Errorf("runner %+v", config.Runner)
	}
	_, err = c.GenerateJitRunnerConfig(t.Context(), setting, set.ID)
	if !errors.Is(err, scaleset.RunnerExistsError) {
		t.Errorf("a second runner of the name: %v", err)
	}
	byName, err := c.GetRunnerByName(t.Context(), "vm")
	requireNoError(t, err)
	byID, err := c.GetRunner(t.Context(), config.Runner.ID)
	requireNoError(t, err)
	if *byName != *config.Runner || *byID != *config.Runner {
		t.Errorf("by name %+v, by id %+v, want %+v", byName, byID, config.Runner)
	}
	if other, err := c.GetRunnerByName(t.Context(), "v"); err != nil || other != nil {
		t.Errorf("a runner of another name: %+v, %v", other, err)
	}

	// A runner with a job is not deleted.
	s.Queue(control.JobSpec{Labels: []string{"big"}, Duration: time.Hour})
	m := newListener(t, c, set)
	getNextMessage(t, m, 0, 10)
	githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", config.EncodedJITConfig)
	s.WaitUntil("the job runs", hasRunningJobs(1))
	if err := c.RemoveRunner(t.Context(), int64(config.Runner.ID)); !errors.Is(err, scaleset.JobStillRunningError) {
		t.Errorf("remove a runner with a job: %v", err)
	}

	setting.Name = "idle"
	idle, err := c.GenerateJitRunnerConfig(t.Context(), setting, set.ID)
	requireNoError(t, err)
	requireNoError(t, c.RemoveRunner(t.Context(), int64(idle.Runner.ID)))
	if _, err := c.GetRunner(t.Context(), idle.Runner.ID); !errors.Is(err, scaleset.RunnerNotFoundError) {
		t.Errorf("get a removed runner: %v", err)
	}
	if err := c.RemoveRunner(t.Context(), int64(idle.Runner.ID)); !errors.Is(err, scaleset.RunnerNotFoundError) {
		t.Errorf("remove a removed runner: %v", err)
	}
	// The runners of another scope are not visible.
	org := newOfficialClient(t, s, githubtest.Org, githubtest.PAT)
	if _, err := org.GetRunner(t.Context(), config.Runner.ID); !errors.Is(err, scaleset.RunnerNotFoundError) {
		t.Errorf("get a repository's runner as an organisation: %v", err)
	}
}

// The client requests a new token a minute before its token expires. It renews the token of the queue
// when the simulator rejects the token.
func TestOfficialClientRenewsTokens(t *testing.T) {
	t.Parallel()
	clk := newFakeClock()
	s, c, set := newOfficialScaleSet(t, github.Options{Clock: clk, ScaleSets: github.ScaleSetOptions{
		AdminTokenLifetime: 30 * time.Second, QueueTokenLifetime: 10 * time.Second,
	}})
	m := newListener(t, c, set)
	before := m.Session()
	s.Queue(control.JobSpec{Labels: []string{"big"}})
	clk.Step(20 * time.Second)
	message := getNextMessage(t, m, 0, 10)
	after := m.Session()
	if after.SessionID != before.SessionID || after.MessageQueueAccessToken == before.MessageQueueAccessToken {
		t.Errorf("session %v, then %v", before.SessionID, after.SessionID)
	}
	clk.Step(20 * time.Second)
	requireNoError(t, m.DeleteMessage(t.Context(), message.MessageID))
	if got := s.State().Requests["runner-registration"]; got < 4 {
		t.Errorf("%d registrations, want one for each call to the service", got)
	}
}

func TestOfficialClientWrongTokens(t *testing.T) {
	t.Parallel()
	clk := newFakeClock()
	s, c, set := newOfficialScaleSet(t, github.Options{Clock: clk, ScaleSets: github.ScaleSetOptions{AdminTokenLifetime: time.Hour}})
	unauthorized := newOfficialClient(t, s, githubtest.Repo, "ghp_wrong")
	_, err := unauthorized.GetRunnerScaleSetByID(t.Context(), set.ID)
	requireError(t, err, "401", "registration token")
	nowhere := newOfficialClient(t, s, "octo-org/nothing", githubtest.PAT)
	_, err = nowhere.GetRunnerScaleSetByID(t.Context(), set.ID)
	requireError(t, err, "404", "registration token")
	// A token of one scope is invalid for the sets of another scope.
	org := newOfficialClient(t, s, githubtest.Org, githubtest.PAT)
	_, err = org.GetRunnerScaleSetByID(t.Context(), set.ID)
	requireError(t, err, "RunnerScaleSetNotFoundException")
	clk.Step(2 * time.Hour)
	_, err = c.GetRunnerScaleSetByID(t.Context(), set.ID)
	requireError(t, err, "401", "VssUnauthorizedException")
}

func TestOfficialClientLosesItsSession(t *testing.T) {
	t.Parallel()
	s, c, set := newOfficialScaleSet(t, github.Options{})
	m := newListener(t, c, set)
	_, err := c.MessageSessionClient(t.Context(), set.ID, "second")
	requireError(t, err, "409", "RunnerScaleSetSessionConflictException", "listener")
	s.Queue(control.JobSpec{Labels: []string{"big"}})
	message := getNextMessage(t, m, 0, 10)
	s.LoseSession("big", false)
	_, err = m.GetMessage(t.Context(), 0, 10)
	requireError(t, err, "404", "RunnerAdminException")
	requireError(t, m.DeleteMessage(t.Context(), message.MessageID), "404", "RunnerAdminException")
	_, err = m.AcquireJobs(t.Context(), []int64{1})
	requireError(t, err, "404", "RunnerAdminException")
	// The next session receives the messages that were not acknowledged.
	if again := getNextMessage(t, newListener(t, c, set), 0, 10); again.MessageID != message.MessageID {
		t.Errorf("message %d, want %d again", again.MessageID, message.MessageID)
	}
}

func TestOfficialClientAsApp(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	s := githubtest.New(t, github.Options{App: newApp(key, listRunnerPermissions())})
	client := func(key *rsa.PrivateKey) *scaleset.Client {
		text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
		c, err := scaleset.NewClientWithGitHubApp(scaleset.ClientWithGitHubAppConfig{
			GitHubConfigURL: s.URL + "/" + githubtest.Repo,
			GitHubAppAuth:   scaleset.GitHubAppAuth{ClientID: "Iv23", InstallationID: installID, PrivateKey: string(text)},
		}, scaleset.WithRetryMax(1))
		requireNoError(t, err)
		return c
	}
	_, err := client(key).CreateRunnerScaleSet(t.Context(), &scaleset.RunnerScaleSet{Name: "big", RunnerGroupID: 1})
	requireNoError(t, err)
	_, err = client(newKey(t)).GetRunnerScaleSet(t.Context(), 1, "big")
	requireError(t, err, "access token", "401")
}
