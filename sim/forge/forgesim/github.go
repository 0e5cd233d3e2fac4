// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/github"
)

// firstInstallationID is the id of the first installation. forgesim creates one installation per
// owner, and the ids count up.
const firstInstallationID = 50_000_001

// defaultPAT is the personal access token if --pat-file is not set. Only the simulator accepts it.
const defaultPAT = "ghp_simulatedpersonalaccesstoken0000000"

type gitHubFlags struct {
	common

	url, patFile, appKeyFile string
	appID                    int64
	orgs, repos              list
	unlimited                bool
	lost                     time.Duration
}

// list is a flag that may be repeated and may hold several values with commas.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(value string) error {
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			*l = append(*l, item)
		}
	}
	return nil
}

func parseGitHub(args []string, stderr io.Writer) (gitHubFlags, error) {
	var f gitHubFlags
	set := f.newFlagSet("github", flagTexts{
		listen: "127.0.0.1:8480", control: "127.0.0.1:8481", api: "address of the API and the runner service",
		secret: "the webhook secret", injected: "webhookLost=0.1,jitDelay=2s",
	}, stderr)
	set.StringVar(&f.url, "url", "",
		"URL of an Enterprise Server in links and webhooks, without a trailing slash (default: the URLs of github.com)")
	set.StringVar(&f.patFile, "pat-file", "", "file with the personal access token that the simulator accepts")
	set.Int64Var(&f.appID, "app-id", 0, "id of a GitHub App")
	set.StringVar(&f.appKeyFile, "app-key-file", "", "PEM file with the App's private or public key")
	set.Var(&f.orgs, "org", "organisation; has a repository ORG/demo unless --repo names a repository of it (repeatable)")
	set.Var(&f.repos, "repo", "repository OWNER/NAME (repeatable)")
	set.BoolVar(&f.unlimited, "no-rate-limits", false, "allow any number of calls, as GitHub Enterprise Server does by default")
	set.DurationVar(&f.lost, "lost-timeout", 0, "time without a call of the runner after which its running job fails (default 10m)")
	err := parseFlags(set, args) // parse fills f: a call in the return statement might run after f is copied
	return f, err
}

func startGitHub(args []string, stderr io.Writer) (*instance, error) {
	f, err := parseGitHub(args, stderr)
	if err != nil {
		return nil, err
	}
	opts, err := f.newOptions()
	if err != nil {
		return nil, err
	}
	sim, err := github.New(opts)
	if err != nil {
		return nil, err
	}
	return &instance{
		common: f.common, sim: sim, name: "GitHub",
		prepare: func(api string) []string { return newGitHubEnvironment(api, opts) },
	}, nil
}

func (f *gitHubFlags) newOptions() (github.Options, error) {
	opts := github.Options{
		URL: f.url, Seed: f.seed, Log: f.log, LostTimeout: f.lost, Unlimited: f.unlimited,
	}
	f.addRepos(&opts)
	var err error
	if opts.Faults, opts.Webhook, err = f.readFaultsAndWebhook(); err != nil {
		return opts, err
	}
	token, err := readSecret(f.patFile, defaultPAT)
	if err != nil {
		return opts, err
	}
	opts.PATs = []github.PAT{{Token: token, Scopes: []string{
		"repo", "admin:org", "admin:org_hook", "admin:repo_hook", "manage_runners:enterprise",
	}}}
	if (f.appID != 0) != (f.appKeyFile != "") {
		return opts, errors.New("--app-id and --app-key-file must be set together")
	}
	if f.appID != 0 {
		opts.App, err = f.newApp(opts.Repos)
	}
	return opts, err
}

func (f *gitHubFlags) addRepos(opts *github.Options) {
	owners := map[string]bool{}
	for _, name := range f.repos {
		owner, _, _ := strings.Cut(name, "/")
		owners[owner] = true
		opts.Repos = append(opts.Repos, github.Repo{FullName: name, Private: true})
	}
	for _, org := range f.orgs {
		if !owners[org] {
			opts.Repos = append(opts.Repos, github.Repo{FullName: org + "/demo", Private: true})
		}
	}
	if len(opts.Repos) == 0 {
		opts.Repos = []github.Repo{{FullName: "octo-org/demo", Private: true}}
	}
}

// newApp returns an App that is installed on every owner with the permissions that runners need.
func (f *gitHubFlags) newApp(repos []github.Repo) (*github.App, error) {
	key, err := readPublicKey(f.appKeyFile)
	if err != nil {
		return nil, err
	}
	app := &github.App{ID: f.appID, Slug: "hyperfleet", PublicKey: key}
	seen := map[string]bool{}
	for _, repo := range repos {
		owner, _, _ := strings.Cut(repo.FullName, "/")
		if seen[owner] {
			continue
		}
		seen[owner] = true
		app.Installations = append(app.Installations, github.Installation{
			ID: firstInstallationID + int64(len(app.Installations)), Account: owner,
			Permissions: map[string]string{
				"actions": "read", "administration": "write", "metadata": "read",
				"organization_self_hosted_runners": "write",
			},
		})
	}
	return app, nil
}

func readPublicKey(file string) (*rsa.PublicKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read App key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("read App key: %s has no PEM block", file)
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return &key.PublicKey, nil
	}
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		if private, ok := key.(*rsa.PrivateKey); ok {
			return &private.PublicKey, nil
		}
	}
	if key, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
		if public, ok := key.(*rsa.PublicKey); ok {
			return public, nil
		}
	}
	return nil, fmt.Errorf("read App key: %s has no RSA key (PKCS#1, PKCS#8 or PKIX)", file)
}

// newGitHubEnvironment returns the variables of GitHub's own programs, and the variables that
// identify the App.
func newGitHubEnvironment(api string, opts github.Options) []string {
	out := []string{"GITHUB_API_URL=" + api, "GITHUB_SERVER_URL=" + api, "GITHUB_TOKEN=" + opts.PATs[0].Token}
	if opts.App != nil {
		out = append(out,
			"GITHUB_APP_ID="+strconv.FormatInt(opts.App.ID, 10),
			"GITHUB_APP_INSTALLATION_ID="+strconv.FormatInt(opts.App.Installations[0].ID, 10))
	}
	return append(out, "GITHUB_REPOSITORY="+opts.Repos[0].FullName)
}
