// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

const (
	program      = "versitygw"
	startTimeout = time.Minute
	grace        = 3 * time.Second
	ownerOnly    = 0o700

	// Region is the region for which requests must be signed.
	Region = "eu-test-1"
	// KeyID is the access key ID of the only user.
	KeyID = "runner-logs"
	// Secret is the user's secret access key.
	Secret = "secret-of-the-store-0123456789"
)

// Server is a running S3 server.
type Server struct {
	// URL is the base URL of the server.
	URL string

	dir, address, logPath string
	process               *procrun.Process
}

// Start starts a server without buckets until the test ends, and returns when the server responds.
func Start(t testing.TB) *Server {
	t.Helper()

	s := &Server{dir: t.TempDir(), address: loopback.Address(t), logPath: filepath.Join(t.TempDir(), "versitygw.log")}
	s.URL = "http://" + s.address
	s.Run(t)
	t.Cleanup(func() {
		s.Stop(t)

		if data, err := os.ReadFile(s.logPath); t.Failed() && err == nil {
			t.Logf("versitygw.log:\n%s", data)
		}
	})

	return s
}

// Run starts the server and returns when it responds. After Stop, it starts the server again with the same data.
func (s *Server) Run(t testing.TB) {
	t.Helper()

	path, err := exe.FindTool("s3", program)
	if err != nil {
		t.Fatal(err)
	}

	data, sidecar := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "meta")
	if err := errors.Join(os.MkdirAll(data, ownerOnly), os.MkdirAll(sidecar, ownerOnly)); err != nil {
		t.Fatal(err)
	}

	s.process, err = procrun.Start(context.Background(), procrun.Spec{
		Path: path, Dir: s.dir, LogPath: s.logPath, GracePeriod: grace,
		Env:  []string{"ROOT_ACCESS_KEY_ID=" + KeyID, "ROOT_SECRET_ACCESS_KEY=" + Secret},
		Args: []string{"--port", s.address, "--region", Region, "posix", "--sidecar", sidecar, data},
	})
	if err != nil {
		t.Fatalf("start %s: %v", program, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	if err := s.process.WaitReady(ctx, s.checkReady); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
}

func (s *Server) checkReady(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		return fmt.Errorf("create request: %w", err)
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("call %s: %w", program, err)
	}

	return response.Body.Close()
}

// Stop stops the server. It does nothing if the server has already ended.
func (s *Server) Stop(t testing.TB) {
	t.Helper()

	if err := s.process.Stop(); err != nil {
		t.Errorf("stop %s: %v", program, err)
	}
}

// CreateBucket creates a bucket.
func (s *Server) CreateBucket(t testing.TB, name string) {
	t.Helper()

	if err := os.Mkdir(filepath.Join(s.dir, "data", name), ownerOnly); err != nil {
		t.Fatal(err)
	}
}

// ReadObjects returns the contents of a bucket's objects by their keys.
func (s *Server) ReadObjects(t testing.TB, bucket string) map[string]string {
	t.Helper()

	out, root := map[string]string{}, filepath.Join(s.dir, "data", bucket)

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		key, err := filepath.Rel(root, path)
		out[filepath.ToSlash(key)] = string(data)

		return err
	})
	if err != nil {
		t.Fatalf("read bucket %s: %v", bucket, err)
	}

	return out
}
