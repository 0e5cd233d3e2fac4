// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// RunnerDownload is a download of the newest release of the runner.
type RunnerDownload struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Filename     string `json:"filename"`
	URL          string `json:"download_url"`
	// SHA256 is the checksum. GitHub Enterprise Server may name none.
	SHA256 string `json:"sha256_checksum,omitempty"`
}

// SetRunnerDownloads replaces the downloads, as GitHub does when it releases a runner.
func (s *Server) SetRunnerDownloads(downloads ...RunnerDownload) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.downloads = downloads
}

// newDownloads returns the downloads of a release. The checksums are those of no file.
func newDownloads(version string) []RunnerDownload {
	out := []RunnerDownload{}
	for _, platform := range [][3]string{{"linux", "x64", "tar.gz"}, {"linux", "arm64", "tar.gz"}, {"win", "x64", "zip"}} {
		file := fmt.Sprintf("actions-runner-%s-%s-%s.%s", platform[0], platform[1], version, platform[2])
		sum := sha256.Sum256([]byte(file))
		out = append(out, RunnerDownload{
			OS: platform[0], Architecture: platform[1], Filename: file, SHA256: hex.EncodeToString(sum[:]),
			URL: "https://github.com/actions/runner/releases/download/v" + version + "/" + file,
		})
	}
	return out
}

func (s *Server) listDownloads(*call) response {
	if s.downloads == nil {
		return newOK(newDownloads(runnerVersion))
	}
	return newOK(s.downloads)
}
