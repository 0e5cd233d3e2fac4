// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/sentinel"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/kubelet/volume"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// serve starts a fleet API and gives its URL.
func serve(t *testing.T) string {
	t.Helper()

	_, url := fleetapi.Serve(t, database, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"dns"}})

	return url
}

// get waits until the address answers with 200, and gives the answer.
func get(t *testing.T, url string) string {
	t.Helper()

	deadline := time.Now().Add(time.Minute)

	for {
		body, err := try(t.Context(), url)
		if err == nil {
			return body
		}

		if time.Now().After(deadline) {
			t.Fatalf("get %s: %v", url, err)
		}

		time.Sleep(lookAt)
	}
}

func try(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}

	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()

	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}

	return string(body), err
}

// TestSentinelRun starts the program as its users do, with a mounted file, looks at what it tells of
// itself, and mounts another file, with which it ends.
func TestSentinelRun(t *testing.T) {
	health, metrics := loopback.Address(t), loopback.Address(t)
	dir, config := t.TempDir(), strings.NewReplacer(
		"http://127.0.0.1:1", serve(t), "amqp://127.0.0.1:1", "amqp://"+brokers.StartRabbitMQ(t).Address).Replace(goodSentinel)
	volume.Mount(t, dir, map[string]string{"sentinel.yaml": config})

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	cmd := sentinel.New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetErr(io.Discard)
	cmd.SetContext(ctx)
	cmd.SetArgs([]string{"--config", filepath.Join(dir, "sentinel.yaml"), "--health-address", health, "--metrics-address", metrics})

	done := make(chan error, 1)

	go func() { done <- cmd.Execute() }()

	get(t, "http://"+health+"/healthz")
	get(t, "http://"+health+"/readyz")

	page := get(t, "http://"+metrics+"/metrics")

	for _, want := range []string{
		`hyperfleet_sentinel_known_resources{resource_selector="tier=gold",resource_type="clusters"} 0`,
		`program="hyperfleet-platform"`, `hyperfleet_sentinel_leader{`, `hyperfleet_sentinel_last_successful_poll_timestamp_seconds{`,
		`hyperfleet_external_call_duration_seconds_count{code="2xx",operation="list",system="hyperfleet-api"}`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}

	volume.Mount(t, dir, map[string]string{"sentinel.yaml": config + "\nlog: {level: debug}\n"})

	if err := <-done; err != nil || ctx.Err() != nil {
		t.Errorf("Execute() = %v after the file had changed, %v", err, ctx.Err())
	}
}
