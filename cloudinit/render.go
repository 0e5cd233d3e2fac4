// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Names of the user's texts in a HypervisorMachineTemplate.
const (
	fieldUserData    = "cloudInit.userData"
	fieldMetaData    = "cloudInit.metaData"
	fieldNetworkData = "cloudInit.networkData"
)

// maxOtherData is the maximum size of meta data and of the network configuration in bytes.
const maxOtherData = 64 << 10

// cloudConfigHeader is the first line of user data that is merged as parsed YAML.
const cloudConfigHeader = "#cloud-config"

// Render returns the boot data of one machine. Every error is caused by the template. It names the field, the
// line if there is one, and the fix, and contains no credential.
func Render(in Input) (Output, error) {
	out, err := render(&in)

	return out, redactError(err, in.secrets())
}

func render(in *Input) (Output, error) {
	if in.InstanceID == "" || in.Hostname == "" {
		return Output{}, errors.New("render cloud-init data: the instance id and the host name must be set")
	}

	userData, err := renderUserData(in)
	if err != nil {
		return Output{}, err
	}

	metaData, err := renderMetaData(in)
	if err != nil {
		return Output{}, err
	}

	networkConfig, err := renderNetwork(in)
	if err != nil {
		return Output{}, err
	}

	return Output{UserData: userData, MetaData: metaData, NetworkConfig: networkConfig}, nil
}

// renderMetaData adds instance-id and local-hostname to the user's meta data.
func renderMetaData(in *Input) ([]byte, error) {
	text, err := executeTemplate(fieldMetaData, in.MetaData, &in.Vars, maxOtherData)
	if err != nil {
		return nil, err
	}

	root, err := parseYAML(fieldMetaData, text)
	if err != nil {
		return nil, err
	}

	operator, err := toNode(struct {
		InstanceID    string `yaml:"instance-id"`
		LocalHostname string `yaml:"local-hostname"`
	}{in.InstanceID, in.Hostname})
	if err != nil {
		return nil, err
	}

	if err := mergeInto(fieldMetaData, root, operator); err != nil {
		return nil, err
	}

	return strictyaml.Encode(root)
}

// renderUserData merges the user data of the user and of the operator.
func renderUserData(in *Input) ([]byte, error) {
	text, err := executeTemplate(fieldUserData, in.UserData, &in.Vars, MaxUserData)
	if err != nil {
		return nil, err
	}

	var out []byte

	switch contentType, isKnown := detectContentType(text); {
	case strings.TrimSpace(text) == "":
		out, err = mergeCloudConfig(in, "")
	case contentType == typeCloudConfig:
		out, err = mergeCloudConfig(in, removeHeader(text))
	case isKnown:
		out, err = buildMultipart(in, text, contentType)
	default:
		err = fmt.Errorf("%s line 1: the format is unknown to cloud-init: begin it with %s, #! and a shell, "+
			"#include, #cloud-boothook, or a MIME header", fieldUserData, cloudConfigHeader)
	}

	if err != nil {
		return nil, err
	}

	if len(out) > MaxUserData {
		return nil, newTooLargeError(fieldUserData, fmt.Sprintf("%d bytes", len(out)), MaxUserData)
	}

	return out, nil
}

// removeHeader removes the #cloud-config line but keeps its line end, so that line numbers do not change.
func removeHeader(text string) string {
	start := strings.Index(strings.ToLower(text), cloudConfigHeader)
	lead := text[:start]

	rest := ""
	if newline := strings.IndexByte(text[start:], '\n'); newline >= 0 {
		rest = text[start+newline:]
	}

	return strings.TrimPrefix(lead, "\ufeff") + rest
}

// mergeCloudConfig merges the operator's cloud-config into the user's.
func mergeCloudConfig(in *Input, text string) ([]byte, error) {
	root, err := parseYAML(fieldUserData, text)
	if err != nil {
		return nil, err
	}

	overrides, err := findOverrides(in, root)
	if err != nil {
		return nil, err
	}

	operator, err := buildOperatorConfig(in, overrides, canStartEarly(in, root))
	if err != nil {
		return nil, err
	}

	if err := mergeInto(fieldUserData, root, operator); err != nil {
		return nil, err
	}

	return addHeader(root)
}

func addHeader(root *yaml.Node) ([]byte, error) {
	body, err := strictyaml.Encode(root)
	if err != nil {
		return nil, err
	}

	return append([]byte(cloudConfigHeader+"\n"), body...), nil
}
