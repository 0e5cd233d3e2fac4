// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func formatSHA256(text string) string {
	s := sha256.Sum256([]byte(text))

	return hex.EncodeToString(s[:])
}

// serveProgram serves the program as the operator does. Its first response is 503, as while the operator
// starts.
func serveProgram(t *testing.T, program string) string {
	t.Helper()

	requests := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- struct{}{}

		switch {
		case !strings.HasPrefix(r.URL.Path, "/bootstrap/"):
			w.WriteHeader(http.StatusNotFound)
		case len(requests) == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = w.Write([]byte(program))
		}
	}))
	t.Cleanup(server.Close)

	return server.URL
}

// runDelivery runs a delivery script with root instead of /opt/hyperfleet, and with a mount program that
// copies the files of the cloud-init ISO to the mount point.
func runDelivery(t *testing.T, root, script, program string) (string, error) {
	t.Helper()

	bin := t.TempDir()
	mount := "#!/bin/sh\nfor dir; do :; done\n"

	if program != "" {
		if err := os.WriteFile(filepath.Join(bin, "medium"), []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}

		mount += "cp '" + filepath.Join(bin, "medium") + "' \"$dir/bootstrap-service\"\n"
	}

	for name, text := range map[string]string{"mount": mount, "umount": "#!/bin/sh\nrm -f \"$1\"/*\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}

	cmd := exec.Command("sh", "-c", strings.ReplaceAll(script, "/opt/hyperfleet", root))
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()

	return string(out), err
}
