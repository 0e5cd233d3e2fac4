// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/silence"
)

// TestReadinessOfACluster checks that a cluster that answers and can do nothing is not ready, and that the error
// names the cause.
func TestReadinessOfACluster(t *testing.T) {
	t.Parallel()

	const failedEtcd = "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\nreadyz check failed\n"

	for name, row := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"ready":                  {http.StatusOK, "ok", ""},
		"a private endpoint":     {http.StatusForbidden, "", ""},
		"rejected credentials":   {http.StatusUnauthorized, "", "cluster kubernetes rejects the credentials of the adapter"},
		"no etcd":                {http.StatusInternalServerError, failedEtcd, "cluster kubernetes is not ready"},
		"a proxy without server": {http.StatusServiceUnavailable, "no upstream", "cluster kubernetes is not ready"},
		"no answer":              {0, "", "cluster kubernetes does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/readyz" {
					t.Errorf("request %s", r.URL)
				}

				w.WriteHeader(row.status)
				fmt.Fprint(w, row.body)
			}))
			t.Cleanup(server.Close)

			host, timeout := server.URL, waitTimeout
			if row.status == 0 {
				host, timeout = "http://"+silence.Listen(t).Address, 100*time.Millisecond
			}

			cluster, err := kubernetes.New(kubernetes.Options{Config: &rest.Config{Host: host}, Adapter: adapterName})
			must.Do(t, err)

			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()

			err = cluster.CheckReady(ctx)
			if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}

			if name == "no etcd" && !strings.HasSuffix(err.Error(), ": etcd") {
				t.Errorf("error %v does not name the failed check", err)
			}
		})
	}
}
