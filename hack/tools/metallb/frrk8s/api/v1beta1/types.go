// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 replaces the package with the same name, because not every module proxy serves its version. It has the
// names that MetalLB needs to compile. They are for BGP with FRR, which no test uses. The types are never read from or
// written to an API server.
package v1beta1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme does nothing, because the controller does not use the kinds.
func AddToScheme(*runtime.Scheme) error { return nil }

type (
	// FRRConfiguration is the configuration that a speaker writes for FRR.
	FRRConfiguration struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec FRRConfigurationSpec `json:"spec"`
	}

	FRRConfigurationSpec struct {
		BGP          BGPConfig
		NodeSelector metav1.LabelSelector
	}

	BGPConfig struct {
		Routers     []Router
		BFDProfiles []BFDProfile
	}

	Router struct {
		ASN       uint32
		ID, VRF   string
		Neighbors []Neighbor
		Prefixes  []string
	}

	DynamicASNMode string

	Neighbor struct {
		Address, Interface                   string
		ASN                                  uint32
		DynamicASN                           DynamicASNMode
		Port                                 *uint16
		HoldTime, KeepaliveTime, ConnectTime *metav1.Duration
		BFDProfile, Password                 string
		PasswordSecret                       SecretReference
		EnableGracefulRestart, EBGPMultiHop  bool
		DualStackAddressFamily, DisableMP    bool
		ToAdvertise                          Advertise
	}

	SecretReference struct{ Name, Namespace string }

	Advertise struct {
		Allowed                   AllowedOutPrefixes
		PrefixesWithLocalPref     []LocalPrefPrefixes
		PrefixesWithCommunity     []CommunityPrefixes
		PrefixesWithAsPathPrepend []AsPathPrependPrefixes
	}

	AllowedOutPrefixes struct{ Prefixes []string }

	LocalPrefPrefixes struct {
		LocalPref uint32
		Prefixes  []string
	}

	CommunityPrefixes struct {
		Community string
		Prefixes  []string
	}

	AsPathPrependPrefixes struct {
		AsPathPrepend uint8
		Prefixes      []string
	}

	BFDProfile struct {
		Name                                            string
		ReceiveInterval, TransmitInterval, EchoInterval *uint32
		DetectMultiplier, MinimumTTL                    *uint32
		EchoMode, PassiveMode                           *bool
	}
)

// DeepCopy returns a copy that is made through JSON.
func (c *FRRConfiguration) DeepCopy() *FRRConfiguration { return copyByJSON(c) }

// DeepCopyObject implements runtime.Object.
func (c *FRRConfiguration) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopyInto copies the spec to out through JSON.
func (s *FRRConfigurationSpec) DeepCopyInto(out *FRRConfigurationSpec) { *out = *copyByJSON(s) }

func copyByJSON[T any](in *T) *T {
	raw, err := json.Marshal(in)
	if err != nil {
		panic(err) // the types have only fields that JSON can encode
	}

	out := new(T)
	if err := json.Unmarshal(raw, out); err != nil {
		panic(err) // the data was just encoded
	}

	return out
}
