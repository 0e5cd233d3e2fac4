// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec_test

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// Method tpm needs all parts of the operator's configuration that it depends on, and gives machines a TPM.
func TestTPM(t *testing.T) {
	t.Parallel()

	whole := vmspec.Settings{
		OperatorUID: "op", GuestURL: "https://operator.example.com", ReportKey: []byte(strings.Repeat("k", 32)),
		TrustDomain: "hyperfleet.io", HasDevIDAuthority: true,
	}

	for name, tc := range map[string]struct {
		method string
		change func(*vmspec.Settings)
		want   string // text in the error; empty if the template can be used
	}{
		"all is there":       {v1alpha1.AttestationTPM, func(*vmspec.Settings) {}, ""},
		"no authority":       {v1alpha1.AttestationTPM, func(s *vmspec.Settings) { s.HasDevIDAuthority = false }, "identity.devID"},
		"no SPIRE server":    {v1alpha1.AttestationTPM, func(s *vmspec.Settings) { s.TrustDomain = "" }, "identity.spire"},
		"nowhere to call":    {v1alpha1.AttestationTPM, func(s *vmspec.Settings) { s.GuestURL = "" }, "guest.url"},
		"no key":             {v1alpha1.AttestationTPM, func(s *vmspec.Settings) { s.ReportKey = nil }, "claim codes"},
		"tokens need no TPM": {v1alpha1.AttestationJoinToken, func(s *vmspec.Settings) { s.HasDevIDAuthority = false }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			settings := whole
			tc.change(&settings)

			spec := newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) {
				s.Attestation = &v1alpha1.Attestation{Method: tc.method}
			})
			err := vmspec.DryRender(spec, settings)

			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) ||
				errclass.ReasonOf(err, "") != vmspec.ReasonAttestationUnavailable):
				t.Errorf("got %v, want %s with %q", err, vmspec.ReasonAttestationUnavailable, tc.want)
			}

			if got := vmspec.NewShape(spec).TPM; got != (tc.method == v1alpha1.AttestationTPM) {
				t.Errorf("a TPM: %t", got)
			}
		})
	}

	if vmspec.NewShape(newTemplate(nil)).TPM {
		t.Error("a machine without attestation has a TPM")
	}
}

// A code is invalid for another purpose and for another machine.
func TestCodesHaveOnePurpose(t *testing.T) {
	t.Parallel()

	key := []byte(strings.Repeat("k", 32))
	seen := map[string]string{}

	for name, code := range map[string]string{
		"credential":      vmspec.ClaimCode(key, "ns", "claim", "uid"),
		"device identity": vmspec.DevIDCode(key, "ns", "claim", "uid"),
		"another uid":     vmspec.DevIDCode(key, "ns", "claim", "uid2"),
		"another name":    vmspec.DevIDCode(key, "ns", "claim2", "uid"),
		"parts moved":     vmspec.DevIDCode(key, "nsclaim", "", "uid"),
		"another key":     vmspec.DevIDCode([]byte(strings.Repeat("x", 32)), "ns", "claim", "uid"),
	} {
		if other, ok := seen[code]; ok || len(code) != 64 {
			t.Errorf("%s and %s have the same code", name, other)
		}

		seen[code] = name
	}
}
