// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// ClaimCode is what the claim's machine proves with, once, that it is the claim's machine.
// It is of another purpose than the token of its reports, and neither can be had from the
// other without the key. Nothing in the cluster holds it.
func ClaimCode(key []byte, namespace, name string, uid types.UID) string {
	return code(key, "credential", namespace, name, uid)
}

// ReportToken is what the claim's machine authenticates its reports with.
func ReportToken(key []byte, namespace, name string, uid types.UID) string {
	return code(key, "report", namespace, name, uid)
}

func code(key []byte, purpose, namespace, name string, uid types.UID) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s\x00%s\x00%s\x00%s", purpose, namespace, name, uid)

	return hex.EncodeToString(mac.Sum(nil))
}

// ReportPath is where the claim's machine reports to, below the operator's URL.
func ReportPath(claim *v1alpha1.MachineClaim) string {
	return fmt.Sprintf("/machines/%s/%s/%s/report", claim.Namespace, claim.Name, claim.UID)
}

// CredentialPath is where the claim's machine gets its credential, below the operator's URL.
func CredentialPath(claim *v1alpha1.MachineClaim) string {
	return fmt.Sprintf("/machines/%s/%s/%s/credential", claim.Namespace, claim.Name, claim.UID)
}
