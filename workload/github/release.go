// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"time"

	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/workload"
)

// maxReleaseAge is how old the list of the runner's downloads may be.
const maxReleaseAge = time.Hour

// Patterns of a download of the runner.
var (
	downloadPattern = regexp.MustCompile(`^actions-runner-[a-z0-9]+-[a-z0-9]+-(\d{1,4}\.\d{1,4}\.\d{1,4})\.(tar\.gz|zip)$`)
	checksumPattern = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)
)

// FindRelease returns the newest release of the runner for an operating system and an architecture, in GitHub's
// names. GitHub names it together with its checksum.
func (p *provider) FindRelease(ctx context.Context, os, arch string) (workload.Release, error) {
	downloads, err := p.downloads.Get(ctx, maxReleaseAge)
	if err != nil {
		return workload.Release{}, err
	}

	index := slices.IndexFunc(downloads, func(d *gh.RunnerApplicationDownload) bool {
		return d.GetOS() == os && d.GetArchitecture() == arch
	})
	if index < 0 {
		return workload.Release{}, newReleaseError("%s names no download of the runner for %s and %s", p.urls.scope, os, arch)
	}

	found := downloads[index]
	match := downloadPattern.FindStringSubmatch(found.GetFilename())
	source, err := url.Parse(found.GetDownloadURL())

	switch {
	case match == nil:
		return workload.Release{}, newReleaseError("%s names a download of the runner without a version: %q",
			p.urls.scope, found.GetFilename())
	case err != nil || source.Scheme != "https" && source.Scheme != "http" || source.Host == "":
		return workload.Release{}, newReleaseError("%s names no URL for the runner's release %s", p.urls.scope, match[1])
	case !checksumPattern.MatchString(found.GetSHA256Checksum()):
		return workload.Release{}, newReleaseError("%s names no checksum for the runner's release %s", p.urls.scope, match[1])
	}

	return workload.Release{Version: match[1], URL: source.String(), SHA256: found.GetSHA256Checksum()}, nil
}

func newReleaseError(format string, args ...any) error {
	return workload.NewRejected(workload.ReasonReleaseUnknown,
		fmt.Sprintf(format, args...)+": set version to a release, with downloadUrl and downloadSha256")
}

// fetchDownloads reads the list of the runner's downloads, which has one entry for each platform.
func (p *provider) fetchDownloads(ctx context.Context) ([]*gh.RunnerApplicationDownload, error) {
	var found []*gh.RunnerApplicationDownload

	path := p.urls.scope.path() + "/actions/runners/downloads"

	call := request{class: classPoll, action: "list the runner's downloads", path: path}
	if _, err := p.send(ctx, call, &found); err != nil {
		return nil, p.explain(call.action, p.urls.scope.runnersRequirement(), err)
	}

	if found == nil {
		return nil, p.explain(call.action, "", workload.ErrNoData)
	}

	return found, nil
}
