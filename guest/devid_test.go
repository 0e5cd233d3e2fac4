// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hyperfleet/hyperfleet/guest/devid"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

func TestDeviceKey(t *testing.T) {
	t.Parallel()

	authority := tpm.NewAuthority(t)
	device := authority.NewTPM(t)

	key, err := devid.CreateKey(device.Path)
	if err != nil {
		t.Fatal(err)
	}

	public, err := tpm2.Unmarshal[tpm2.TPM2BPublic](key.PublicForRequest)
	if err != nil || !bytes.Equal(public.Bytes(), key.Public) {
		t.Fatalf("public area %x, %v; blob %x", key.PublicForRequest, err, key.Public)
	}

	if certificate, err := x509.ParseCertificate(key.EKCertificate); err != nil || !strings.Contains(certificate.Issuer.CommonName, "swtpm") {
		t.Errorf("endorsement certificate: %v, %v", certificate, err)
	}

	again, err := devid.CreateKey(device.Path)
	if err != nil {
		t.Fatal(err)
	}

	if bytes.Equal(key.Public, again.Public) || !bytes.Equal(key.EKCertificate, again.EKCertificate) {
		t.Error("the TPM created another key, which does not match its certificate")
	}

	// Clones would have the TPM of their template.
	clone, err := devid.CreateKey(authority.CopyTPM(t, device).Path)
	if err != nil || !bytes.Equal(clone.EKCertificate, key.EKCertificate) {
		t.Errorf("a copied TPM is another one: %v", err)
	}

	other, err := devid.CreateKey(authority.NewTPM(t).Path)
	if err != nil || bytes.Equal(other.EKCertificate, key.EKCertificate) {
		t.Errorf("two TPMs have one certificate: %v", err)
	}
}

func TestUnusableTPMs(t *testing.T) {
	t.Parallel()

	authority := tpm.NewAuthority(t)
	dir := t.TempDir()

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	stopped := authority.NewTPM(t)
	stopped.Stop(t)

	for name, tc := range map[string]struct{ path, want string }{
		"none":           {filepath.Join(dir, "tpmrm0"), "the machine has no TPM 2.0"},
		"no certificate": {authority.NewTPMWithoutCertificate(t).Path, "its manufacturer has to certify"},
		"not a device":   {file, "not a device"},
		"does not speak": {os.DevNull, "endorsement certificate"},
		"removed":        {stopped.Path, "TPM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if key, err := devid.CreateKey(tc.path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %x, %v; want an error with %q", key.Public, err, tc.want)
			}
		})
	}
}

func TestFilesOfADeviceKey(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	key := devid.Key{Public: []byte{1}, Private: []byte{2}}

	files, err := key.WriteFiles(dir, "/dev/tpmrm0", "chain")
	if err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string]string{files.Certificate: "chain", files.Private: "\x02", files.Public: "\x01"} {
		data, err := os.ReadFile(path)
		info, _ := os.Stat(path)

		if err != nil || string(data) != want || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %q, %v, %v", path, data, info.Mode(), err)
		}
	}

	want := "NodeAttestor \"tpm_devid\" {\n\tplugin_data {\n\t\ttpm_device_path = \"/dev/tpmrm0\"\n" +
		"\t\tdevid_cert_path = \"" + files.Certificate + "\"\n"
	if got := files.NodeAttestor(); !strings.HasPrefix(got, want) {
		t.Errorf("plugin:\n%s\nwant the prefix\n%s", got, want)
	}

	if _, err := key.WriteFiles(filepath.Join(dir, "none"), "", ""); err == nil {
		t.Error("no error although the folder does not exist")
	}
}
