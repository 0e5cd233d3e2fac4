// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/s3"
)

// settingsOf is the operator's configuration with a store.
func settingsOf(endpoint, bucket, more string) string {
	return fmt.Sprintf("apiVersion: config.hyperfleet.io/v1alpha1\nsomethingNewer: 1\nrunners:\n  logs:\n    keepIn: store\n"+
		"    store: {endpoint: %q, region: %q, bucket: %q, prefix: a/, secret: store%s}\n", endpoint, s3.Region, bucket, more)
}

// The store that the operator's configuration names is tried with the operator's keys, and what
// it refuses is told with the fix.
func TestStoreOfLogs(t *testing.T) { //nolint:paralleltest // it speaks of the whole API server, as all here
	server := s3.Start(t)
	server.Bucket(t, "logs")

	// keep passes all on but what keys that only write may not do.
	upstream, err := url.Parse(server.URL)
	must(t, err)

	proxy := httputil.NewSingleHostReverseProxy(upstream)
	keep := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>")

			return
		}

		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(keep.Close)

	nobody := "http://" + loopback.Address(t)

	for name, tc := range map[string]struct{ settings, secret, want string }{
		"well":          {settings: settingsOf(server.URL, "logs", ""), secret: s3.Secret, want: "ok s3://logs/a/hyperfleet-doctor.txt was written, read and deleted"},
		"no bucket":     {settings: settingsOf(server.URL, "none", ""), secret: s3.Secret, want: "problem it takes no logs: write s3://none/a/hyperfleet-doctor.txt at " + server.URL + ": NoSuchBucket: there is no such bucket: make it, or name another"},
		"another key":   {settings: settingsOf(server.URL, "logs", ""), secret: "another", want: "SignatureDoesNotMatch: the secret access key is wrong"},
		"no keys":       {settings: settingsOf(server.URL, "logs", ""), want: "problem it takes no logs: read keys of log store: "},
		"no answer":     {settings: settingsOf(nobody, "logs", ""), secret: s3.Secret, want: "warning it does not answer here: "},
		"own authority": {settings: settingsOf(server.URL, "logs", ", caFile: /etc/ca.pem"), secret: s3.Secret, want: "warning not tried: /etc/ca.pem, by which"},
		"in cluster":    {settings: "runners: {logs: {keepIn: cluster}}"},
		"not YAML":      {settings: "runners: [", want: "problem operator.yaml of ConfigMap "},
		"not installed": {},
	} {
		t.Run(name, func(t *testing.T) {
			if got := storeFindings(t, tc.settings, tc.secret); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("doctor says %q, want %q", got, tc.want)
			} else if strings.Contains(got, s3.Secret) {
				t.Error("it says the key")
			}

			if left := server.Objects(t, "logs"); len(left) > 0 {
				t.Errorf("left in the store: %v", left)
			}
		})
	}

	t.Run("keys that do not delete", func(t *testing.T) {
		want := "ok it takes logs; s3://logs/a/hyperfleet-doctor.txt is left there"
		if got := storeFindings(t, settingsOf(keep.URL, "logs", ""), s3.Secret); !strings.Contains(got, want) {
			t.Errorf("doctor says %q, want %q", got, want)
		}
	})
}

// storeFindings are what doctor says of the store, with an operator in a namespace of its own.
func storeFindings(t *testing.T, settings, secret string) string {
	t.Helper()

	namespace := env.Namespace(t)

	if settings != "" {
		must(t, env.Client.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hyperfleet-runners"}, Data: map[string]string{"operator.yaml": settings},
		}))
	}

	if secret != "" {
		must(t, env.Client.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "store"},
			StringData: map[string]string{"accessKeyId": s3.KeyID, "secretAccessKey": secret},
		}))
	}

	d := &doctor{client: env.Client, now: time.Now(), namespace: namespace, operator: namespace, waiting: defaultWaiting}
	must(t, d.look(t.Context()))

	var said []string

	for _, f := range d.report.Findings {
		if f.Subject == storeSubject {
			said = append(said, string(f.Level)+" "+f.Message)
		}
	}

	return strings.Join(said, "\n")
}
