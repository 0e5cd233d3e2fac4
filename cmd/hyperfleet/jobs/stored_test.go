// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/objectstore"
	"github.com/hyperfleet/hyperfleet/test/s3"
)

// A log in a store is read with the reader's own keys, at a server that the reader names.
func TestReadStored(t *testing.T) {
	t.Parallel()

	server := s3.Start(t)
	server.Bucket(t, "logs")

	store, err := objectstore.New(objectstore.Place{Endpoint: server.URL, Region: s3.Region, Bucket: "logs"},
		objectstore.Keys{ID: s3.KeyID, Secret: s3.Secret}, httpbound.Shared())
	if err != nil {
		t.Fatal(err)
	}

	if err := store.Put(t.Context(), "ci/linux-a.log", "output\n"); err != nil {
		t.Fatal(err)
	}

	where := &v1alpha1.StoredLog{Endpoint: server.URL, Region: s3.Region, Bucket: "logs", Key: "ci/linux-a.log", Bytes: 7}
	at := "it is s3://logs/ci/linux-a.log at " + server.URL + "; "

	for name, tc := range map[string]struct {
		env     map[string]string
		problem string
	}{
		"keys and server":   {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpointS3: server.URL + "/"}, ""},
		"the general name":  {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpoint: server.URL}, ""},
		"no keys":           {nil, at + "with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment it is read here"},
		"no server":         {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret}, at + "with AWS_ENDPOINT_URL_S3=" + server.URL},
		"another server":    {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpointS3: "https://s3.example.com"}, at + "with AWS_ENDPOINT_URL_S3="},
		"keys that may not": {map[string]string{envKeyID: s3.KeyID, envSecret: "another", envEndpointS3: server.URL}, at + "read s3://logs/ci/linux-a.log"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			text, problem := readStored(t.Context(), where, func(name string) string { return tc.env[name] })
			if !strings.HasPrefix(problem, tc.problem) || (problem == "") != (tc.problem == "") || (problem == "") != (text == "output\n") {
				t.Errorf("%q, %q; want %q", text, problem, tc.problem)
			}
		})
	}
}

func TestWhichStoresAreCalledUnasked(t *testing.T) {
	t.Parallel()

	for endpoint, want := range map[string]bool{
		"https://s3.eu-central-1.amazonaws.com": true, "http://s3.eu-central-1.amazonaws.com": false,
		"https://s3.example.com": false, "https://amazonaws.com.example.com": false, "https://evil-amazonaws.com": false,
	} {
		if got := mayCall(endpoint, ""); got != want {
			t.Errorf("mayCall(%s) = %v", endpoint, got)
		}
	}
}

// TestLogsOfAStore: without keys the command says where the log is.
func TestLogsOfAStore(t *testing.T) {
	namespace, kubeconfig := populate(t)

	t.Setenv(envKeyID, "")
	t.Setenv(envSecret, "")

	var log v1alpha1.RunnerLog

	log.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "gh-29679449520-log"}
	if err := env.Client.Delete(t.Context(), &log); err != nil {
		t.Fatal(err)
	}

	log = v1alpha1.RunnerLog{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gh-29679449520-log"},
		Spec: v1alpha1.RunnerLogSpec{Claim: "linux-a", Stored: &v1alpha1.StoredLog{
			Endpoint: "https://s3.example.com", Region: "eu-1", Bucket: "logs", Key: "ci/linux-a.log", Bytes: 7,
		}},
	}
	env.Create(t, &log)

	out, text, code := run(t, NewOne(), "29679449520", "--kubeconfig", kubeconfig, "-n", namespace)
	if want := "No log: it is s3://logs/ci/linux-a.log at https://s3.example.com; with AWS_ACCESS_KEY_ID"; code != 0 || !strings.Contains(out, want) {
		t.Errorf("exit code %d %s; output lacks %q:\n%s", code, text, want, out)
	}

	out, _, _ = run(t, NewOne(), "29679449520", "--kubeconfig", kubeconfig, "-n", namespace, "--output", "json")
	for _, want := range []string{`"logUrl": "s3://logs/ci/linux-a.log"`, `"log": null`} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %s:\n%s", want, out)
		}
	}
}
