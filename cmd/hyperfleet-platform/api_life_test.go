// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestAPIAfterAFailover makes the database read-only, ends its connections, and makes it writable again. The
// API is not ready meanwhile, and then writes without a restart.
func TestAPIAfterAFailover(t *testing.T) {
	t.Parallel()

	in := newAPIInstallation(t)
	in.startAPI()

	admin, err := pgx.Connect(t.Context(), database.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())

	parsed, err := url.Parse(in.database)
	if err != nil {
		t.Fatal(err)
	}

	name := parsed.Path[1:]
	setReadOnly := func(value string) {
		t.Helper()

		if _, err := admin.Exec(t.Context(), "alter database "+name+" set default_transaction_read_only = "+value); err != nil {
			t.Fatal(err)
		}
	}
	request := func(method, url, body string) error {
		_, err := call(t.Context(), method, url, body)

		return err
	}
	create := func(name string) error {
		return request(http.MethodPost, in.api+"/api/hyperfleet/v1/clusters", `{"name":"`+name+`","spec":{}}`)
	}
	isReady := func() bool { return request(http.MethodGet, "http://"+in.health["api"]+"/readyz", "") == nil }

	if err := create("before"); err != nil {
		t.Fatal(err)
	}

	setReadOnly("on")

	if _, err := admin.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name); err != nil {
		t.Fatal(err)
	}

	if err := create("meanwhile"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a write while the database is read-only: %v", err)
	}

	if isReady() {
		t.Error("the API is ready although it cannot write")
	}

	setReadOnly("off")

	if !isReady() {
		t.Error("the API is not ready although it can write again")
	}

	for _, err := range []error{
		create("after"), request(http.MethodPut, in.api+"/api/hyperfleet/v1/leases/a", `{"holder":"h","ttl_seconds":1}`),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// readAPIManifest returns the memory limit and the environment of the API in the manifest.
func readAPIManifest(t *testing.T) (limit int64, env []string) {
	t.Helper()

	file, err := os.ReadFile("../../deploy/platform/api.yaml")
	if err != nil {
		t.Fatal(err)
	}

	for document := range strings.SplitSeq(string(file), "\n---\n") {
		var deployment appsv1.Deployment
		if err := yaml.Unmarshal([]byte(document), &deployment); err != nil {
			t.Fatal(err)
		}

		if deployment.Kind != "Deployment" {
			continue
		}

		container := deployment.Spec.Template.Spec.Containers[0]
		for _, variable := range container.Env {
			env = append(env, variable.Name+"="+variable.Value)
		}

		return container.Resources.Limits.Memory().Value(), env
	}

	t.Fatal("the manifest has no Deployment")

	return 0, nil
}

// TestAPIStaysWithinItsLimit lists forty resources of a megabyte six times at once, and compares the peak memory
// of the process with the limit of the manifest.
func TestAPIStaysWithinItsLimit(t *testing.T) {
	t.Parallel()

	const specSize = 1<<20 - 100

	resources, lists := 40, 6
	limit, env := readAPIManifest(t)

	// The race detector takes three times the memory, and so much time that more lists at once would reach the
	// store's timeout on a slow computer.
	if timing.RaceDetector {
		resources, lists, limit = 20, 2, 3*limit
	}

	in := newAPIInstallation(t, env...)
	in.startAPI()

	collection := in.api + "/api/hyperfleet/v1/clusters"
	// Lists of small numbers take the most memory when they are decoded.
	contents := []string{`"` + strings.Repeat("x", specSize-10) + `"`, "[" + strings.Repeat("1,", specSize/2-10) + "1]"}

	for i := range resources {
		if _, err := call(t.Context(), http.MethodPost, collection, fmt.Sprintf(`{"name":"c%02d","spec":{"a":%s}}`, i, contents[i%4/3])); err != nil {
			t.Fatalf("%.300v", err)
		}
	}

	var group sync.WaitGroup

	for i := range lists {
		query := []string{"?size=100&order=name", "?size=100&order=name&fields=name,spec"}[i%2]

		group.Go(func() {
			for offset, isFirst := 0, true; isFirst || offset > 0; isFirst = false {
				text, err := call(t.Context(), http.MethodGet, fmt.Sprintf("%s%s&offset=%d", collection, query, offset), "")

				var page struct {
					Items      []struct{ Name string } `json:"items"`
					NextOffset int                     `json:"next_offset"`
				}

				if err == nil {
					err = json.Unmarshal([]byte(text), &page)
				}

				if err != nil || len(page.Items) == 0 || page.Items[0].Name != fmt.Sprintf("c%02d", offset) {
					t.Errorf("%s at %d: %d items, %.300v", query, offset, len(page.Items), err)

					return
				}

				offset = page.NextOffset
			}
		})
	}

	group.Wait()

	if peak := readPeakMemory(t, in.processes["api"].PID()); peak > limit {
		t.Errorf("the API took %d MiB, more than its limit of %d MiB", peak>>20, limit>>20)
	} else {
		t.Logf("the API took %d MiB of %d MiB", peak>>20, limit>>20)
	}
}

// readPeakMemory returns the peak resident memory of a process in bytes.
func readPeakMemory(t *testing.T, pid int) int64 {
	t.Helper()

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}

	var kib int64

	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}

	return kib << 10
}
