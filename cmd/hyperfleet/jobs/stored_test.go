// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/runners/objectstore"
	"github.com/hyperfleet/hyperfleet/test/s3"
)

// TestReadStored checks that a log in a store is read with the user's own keys from a server that the user names.
func TestReadStored(t *testing.T) {
	t.Parallel()

	server := s3.Start(t)
	server.CreateBucket(t, "logs")

	store, err := objectstore.New(objectstore.Location{Endpoint: server.URL, Region: s3.Region, Bucket: "logs"},
		objectstore.Credentials{ID: s3.KeyID, Secret: s3.Secret}, bounds.SharedTransport())
	if err != nil {
		t.Fatal(err)
	}

	if err := store.Put(t.Context(), "ci/linux-a.log", "output\n"); err != nil {
		t.Fatal(err)
	}

	scope := &v1alpha1.StoredLog{Endpoint: server.URL, Region: s3.Region, Bucket: "logs", Key: "ci/linux-a.log", Bytes: 7}
	at := "the log is s3://logs/ci/linux-a.log at " + server.URL + "; "

	for name, tc := range map[string]struct {
		env     map[string]string
		problem string
	}{
		"keys and server":   {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpointS3: server.URL + "/"}, ""},
		"the general name":  {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpoint: server.URL}, ""},
		"no keys":           {nil, at + "to read it, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"},
		"no server":         {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret}, at + "to read it, set AWS_ENDPOINT_URL_S3=" + server.URL},
		"another server":    {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpointS3: "https://s3.example.com"}, at + "to read it, set AWS_ENDPOINT_URL_S3="},
		"keys that may not": {map[string]string{envKeyID: s3.KeyID, envSecret: "another", envEndpointS3: server.URL}, at + "read s3://logs/ci/linux-a.log"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			text, problem := readStoredLog(t.Context(), scope, func(name string) string { return tc.env[name] })
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
		"https://s3.amazonaws.com.example.com": false,
	} {
		if got := isTrustedEndpoint(endpoint, ""); got != want {
			t.Errorf("mayCall(%s) = %v", endpoint, got)
		}
	}
}
