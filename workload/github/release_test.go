// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func TestFindRelease(t *testing.T) {
	t.Parallel()

	sum := strings.Repeat("a1", 32)
	good := sim.RunnerDownload{
		OS: "linux", Architecture: "x64", Filename: "actions-runner-linux-x64-2.331.0.tar.gz", URL: "https://mirror.example.com/r.tar.gz", SHA256: sum,
	}
	change := func(apply func(*sim.RunnerDownload)) sim.RunnerDownload {
		out := good
		apply(&out)

		return out
	}

	for name, tc := range map[string]struct {
		download sim.RunnerDownload
		want     workload.Release
		words    string
	}{
		"a release":          {download: good, want: workload.Release{Version: "2.331.0", URL: good.URL, SHA256: sum}},
		"another platform":   {download: change(func(d *sim.RunnerDownload) { d.Architecture = "arm64" }), words: "names no download of the runner for linux and x64"},
		"no checksum":        {download: change(func(d *sim.RunnerDownload) { d.SHA256 = "" }), words: "names no checksum for the runner's release 2.331.0"},
		"another checksum":   {download: change(func(d *sim.RunnerDownload) { d.SHA256 = "md5" }), words: "names no checksum"},
		"no version":         {download: change(func(d *sim.RunnerDownload) { d.Filename = "actions-runner.tar.gz" }), words: "without a version"},
		"a URL of no server": {download: change(func(d *sim.RunnerDownload) { d.URL = "file:///etc/passwd" }), words: "names no URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := githubtest.New(t, sim.Options{})
			server.SetRunnerDownloads(tc.download)

			finder, ok := openTestProvider(t, github.NewPlatform(), server.URL, githubtest.PAT, "").(workload.ReleaseFinder)
			if !ok {
				t.Fatal("the provider finds no releases")
			}

			got, err := finder.FindRelease(t.Context(), "linux", "x64")

			if tc.words != "" {
				if !workload.Is(err, workload.Rejected) || !strings.Contains(err.Error(), tc.words) {
					t.Errorf("error %v, want ...%s...", err, tc.words)
				}

				return
			}

			if err != nil || got != tc.want {
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}

// The list of downloads is read once an hour, however many templates ask for it.
func TestReleaseIsCached(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})
	provider := openTestProvider(t, github.NewPlatform(), server.URL, githubtest.PAT, "")
	finder, _ := provider.(workload.ReleaseFinder)

	if found, err := finder.FindRelease(t.Context(), "win", "x64"); err != nil || !strings.HasSuffix(found.URL, ".zip") {
		t.Fatalf("%+v, %v", found, err)
	}

	server.SetRunnerDownloads()

	if found, err := finder.FindRelease(t.Context(), "linux", "arm64"); err != nil || found.Version == "" {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestProgramOfVersion(t *testing.T) {
	t.Parallel()

	newest := &v1alpha1.RunnerRelease{Version: "2.331.0", DownloadURL: "https://github.com/r-2.331.0.tar.gz", SHA256: "aa"}

	for name, tc := range map[string]struct {
		runner v1alpha1.GitHubRunner
		status *v1alpha1.RunnerRelease
		want   guest.Runner
	}{
		"from the image": {runner: v1alpha1.GitHubRunner{Version: "from-image", DownloadURL: "https://m/{os}-{arch}", DownloadSHA256: "bb"},
			status: newest, want: guest.Runner{DownloadURL: "https://m/linux-x64", DownloadSHA256: "bb"}},
		"not set": {status: newest},
		"the newest": {runner: v1alpha1.GitHubRunner{Version: "latest"}, status: newest,
			want: guest.Runner{Version: "2.331.0", DownloadURL: newest.DownloadURL, DownloadSHA256: "aa"}},
		"the newest, from a mirror": {runner: v1alpha1.GitHubRunner{Version: "latest", DownloadURL: "https://m/{version}/{os}"}, status: newest,
			want: guest.Runner{Version: "2.331.0", DownloadURL: "https://m/2.331.0/linux", DownloadSHA256: "aa"}},
		"a release": {runner: v1alpha1.GitHubRunner{Version: "2.330.0", DownloadURL: "https://m/{version}", DownloadSHA256: "cc"}, status: newest,
			want: guest.Runner{Version: "2.330.0", DownloadURL: "https://m/2.330.0", DownloadSHA256: "cc"}},
	} {
		template := &v1alpha1.HypervisorMachineTemplate{}
		template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Organization: "o", Runner: &tc.runner}}
		template.Status.Runner = tc.status

		got, err := github.NewPlatform().ResolveRunner(template, v1alpha1.Workload{})
		if err != nil {
			t.Fatal(err)
		}

		program := guest.Runner{
			Version: got.Program.Version, DownloadURL: got.Program.DownloadURL, DownloadSHA256: got.Program.DownloadSHA256,
		}
		if diff := cmp.Diff(tc.want, program); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
