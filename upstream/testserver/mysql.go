package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// mysqldEnv names a mysqld program of MySQL 8.0.30 or later. StartMariaDB then starts that in the place of
// mariadbd: `make test-mysql` runs the tests of the MySQL driver so.
const mysqldEnv = "LOCKSIDECAR_TEST_MYSQLD"

// IsMySQL says whether StartMariaDB starts MySQL itself.
func IsMySQL() bool { return os.Getenv(mysqldEnv) != "" }

// mysqldArgs are what MySQL has and what makes its files.
func mysqldArgs(data string) []string {
	args := []string{"--no-defaults", "--datadir=" + data, "--innodb-redo-log-capacity=16M", "--innodb-buffer-pool-size=24M",
		"--key-buffer-size=1M", "--performance-schema=0", "--mysqlx=0", "--skip-log-bin", "--secure-file-priv=", "--auto-generate-certs=0"}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}

// mysqlImage makes the files of a fresh MySQL.
func mysqlImage(dir string) (image, error) {
	data := filepath.Join(dir, "data")
	out, err := exec.Command(os.Getenv(mysqldEnv), append(mysqldArgs(data), "--initialize-insecure")...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("mysqld --initialize-insecure: %w\n%s", err, out)
	}
	return packImage(data)
}
