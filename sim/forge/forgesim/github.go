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

// installationID is the id of the one installation forgesim makes per owner,
// counted up from here.
const installationID = 50_000_001

// defaultPAT is the token when no --pat-file is given. It opens nothing but the simulator.
const defaultPAT = "ghp_simulatedpersonalaccesstoken0000000"

type gitHubFlags struct {
	common

	url, patFile, appKeyFile, enterprise string
	appID                                int64
	orgs, repos                          list
	unlimited                            bool
	pickup, lost                         time.Duration
}

// list is a flag that may be given several times, or with commas.
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
	set := f.flagSet("github", texts{
		listen: "127.0.0.1:8480", control: "127.0.0.1:8481", api: "address of the API and the runner service",
		secret: "the webhook secret", injected: "webhookLost=0.1,jitDelay=2s",
	}, stderr)
	set.StringVar(&f.url, "url", "",
		"URL of an Enterprise Server in links and webhooks, without a trailing slash (default: github.com's)")
	set.StringVar(&f.patFile, "pat-file", "", "file with the personal access token to accept")
	set.Int64Var(&f.appID, "app-id", 0, "id of a GitHub App")
	set.StringVar(&f.appKeyFile, "app-key-file", "", "PEM file with the App's private or public key")
	set.Var(&f.orgs, "org", "organisation; gets a repository ORG/demo unless --repo names one (repeatable)")
	set.Var(&f.repos, "repo", "repository OWNER/NAME (repeatable)")
	set.StringVar(&f.enterprise, "enterprise", "", "slug of an enterprise that holds all organisations")
	set.DurationVar(&f.pickup, "pickup-timeout", 0, "an offered job returns to the queue after this (default 1m)")
	set.BoolVar(&f.unlimited, "no-rate-limits", false, "answer any number of calls, as GitHub Enterprise Server does by default")
	set.DurationVar(&f.lost, "lost-timeout", 0, "a running job of a silent runner fails after this (default 10m)")
	err := parse(set, args) // fills f in: not in the return, which may copy f first
	return f, err
}

func startGitHub(args []string, stderr io.Writer) (*site, error) {
	f, err := parseGitHub(args, stderr)
	if err != nil {
		return nil, err
	}
	opts, err := f.options()
	if err != nil {
		return nil, err
	}
	sim, err := github.New(opts)
	if err != nil {
		return nil, err
	}
	return &site{
		common: f.common, sim: sim, name: "GitHub",
		begin: func(api string) []string { return gitHubEnvironment(api, opts) },
	}, nil
}

func (f *gitHubFlags) options() (github.Options, error) {
	opts := github.Options{
		URL: f.url, Enterprise: f.enterprise, Seed: f.seed, Log: f.log,
		PickupTimeout: f.pickup, LostTimeout: f.lost, Unlimited: f.unlimited,
	}
	f.addRepos(&opts)
	var err error
	if opts.Faults, opts.Webhook, err = f.read(); err != nil {
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
		return opts, errors.New("--app-id and --app-key-file go together")
	}
	if f.appID != 0 {
		opts.App, err = f.app(opts.Repos)
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

// app installs the App on every owner with the rights runners need.
func (f *gitHubFlags) app(repos []github.Repo) (*github.App, error) {
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
			ID: installationID + int64(len(app.Installations)), Account: owner,
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
		return nil, fmt.Errorf("read App key: %s holds no PEM block", file)
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
	return nil, fmt.Errorf("read App key: %s holds no RSA key (PKCS#1, PKCS#8 or PKIX)", file)
}

// gitHubEnvironment are the variables of GitHub's own programs, and what names the App.
func gitHubEnvironment(api string, opts github.Options) []string {
	out := []string{"GITHUB_API_URL=" + api, "GITHUB_SERVER_URL=" + api, "GITHUB_TOKEN=" + opts.PATs[0].Token}
	if opts.App != nil {
		out = append(out,
			"GITHUB_APP_ID="+strconv.FormatInt(opts.App.ID, 10),
			"GITHUB_APP_INSTALLATION_ID="+strconv.FormatInt(opts.App.Installations[0].ID, 10))
	}
	return append(out, "GITHUB_REPOSITORY="+opts.Repos[0].FullName)
}
