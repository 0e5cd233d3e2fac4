// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// errNoMachineConfig means that user data has no configuration of the service.
var errNoMachineConfig = errors.New("the user data does not write " + guest.ConfigPath)

// findMachineConfig returns the configuration of the service in the user data of cloud-init: the content of the entry
// of write_files for guest.ConfigPath. On Windows, the service reads the medium itself, so that an image works
// without cloudbase-init.
func findMachineConfig(userData []byte) ([]byte, error) {
	if len(userData) > MaxConfigBytes*4 {
		return nil, fmt.Errorf("the user data has more than %d bytes", MaxConfigBytes*4)
	}

	if !strings.HasPrefix(string(userData), "#cloud-config") {
		return nil, errors.New("the user data does not begin with #cloud-config: give the template user data in this format")
	}

	var config struct {
		WriteFiles []struct {
			Path    string `yaml:"path"`
			Content string `yaml:"content"`
		} `yaml:"write_files"`
	}
	if err := yaml.Unmarshal(userData, &config); err != nil {
		return nil, errors.New("the user data is not valid YAML") // the error may quote a credential
	}

	for _, file := range config.WriteFiles {
		if file.Path == guest.ConfigPath {
			return []byte(file.Content), nil
		}
	}

	return nil, errNoMachineConfig
}
